package state

import (
	"errors"
	"time"
)

// TokenByIdentityName are the tokens issued to a task, by identity name.
type TokenByIdentityName map[string]*IdentityToken

// IdentityToken is a workload identity token. It is secret.
type IdentityToken struct {
	JWT       string    `store:"jwt,secret"`
	KeyID     string    `store:"key_id"` // id of the key that signed the token
	IssuedAt  time.Time `store:"issued_at"`
	ExpiresAt time.Time `store:"expires_at"` // zero means never
	RenewAt   time.Time `store:"renew_at"`   // zero means never
	// ChangeModePending: the token was renewed for a running task, and its file or the identity's change_mode may still be
	// missing.
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
