// Package keyring seals secrets with AES-256-GCM, and keeps the keys in a file, with the RSA keys for signing workload identity
// tokens.
//
// It owns the formats for the key file and sealed bytes. Package store decides which records are sealed and when keys are
// rotated, package identity what a token contains.
package keyring
