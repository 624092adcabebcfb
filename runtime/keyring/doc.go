// Package keyring seals secrets with AES-256-GCM, and keeps the keys in a file.
//
// It owns the format of the key file and of sealed bytes. It does not decide what
// is sealed, or when keys are rotated: package store does, and is its only caller.
package keyring
