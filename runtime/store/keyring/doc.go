// Package keyring seals secrets with AES-256-GCM, and keeps the keys in a file, with the RSA keys
// that sign the tokens of workload identities.
//
// It owns the format of the key file and of sealed bytes. Package store decides which records are
// sealed and when keys are rotated, package identity what a token contains.
package keyring
