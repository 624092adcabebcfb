// Package keyring seals secrets with AES-256-GCM, and keeps the keys in a file.
//
// It owns the format of the key file and of sealed bytes. Package store, its only
// caller, decides which records are sealed and when keys are rotated.
package keyring
