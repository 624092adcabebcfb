package state

import (
	"errors"
	"time"
)

// TokenByIdentityName are the tokens that were issued to a task, by the name of the identity.
type TokenByIdentityName map[string]*IdentityToken

// IdentityToken is the token of a workload identity. It is secret.
type IdentityToken struct {
	JWT       string    `store:"jwt,secret"`
	KeyID     string    `store:"key_id"` // id of the key that has signed the token
	IssuedAt  time.Time `store:"issued_at"`
	ExpiresAt time.Time `store:"expires_at"` // zero means never
	RenewAt   time.Time `store:"renew_at"`   // zero means never
	// ChangeModePending means that the token was renewed for a running task, and that its file or the
	// change_mode of the identity may still be missing.
	ChangeModePending bool `store:"change_pending"`
}

// CheckRecord returns an error if a token is missing.
func (t TokenByIdentityName) CheckRecord() error {
	for _, token := range t {
		if token == nil || token.JWT == "" || token.IssuedAt.IsZero() {
			return errors.New("the record of a task's identities lacks a token")
		}
	}
	return nil
}
