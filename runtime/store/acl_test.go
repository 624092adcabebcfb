package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

const tokenSecret = "8f8bc33d-e0bb-8a0f-3a11-eb6e42b52038"

func TestTokenIsFoundBySecretAndSealedInTheFile(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutACLToken(&api.ACLToken{AccessorID: "a", SecretID: tokenSecret, Name: "n", Type: "client", Policies: []string{"p"}})
		tx.PutACLToken(&api.ACLToken{AccessorID: "b", SecretID: "other", Type: "management"})
	})
	for range 2 {
		snapshot := s.Snapshot()
		for _, secret := range []string{tokenSecret, strings.ToUpper(tokenSecret)} {
			if got := snapshot.ACLTokenBySecret(nil, secret); got == nil || got.AccessorID != "a" || got.SecretID != tokenSecret || got.CreateIndex == 0 {
				t.Errorf("%s: got %+v", secret, got)
			}
		}
		for _, secret := range []string{"", "a", tokenSecret[1:], secretHash(tokenSecret)} {
			if got := snapshot.ACLTokenBySecret(nil, secret); got != nil {
				t.Errorf("%q: got %+v", secret, got)
			}
		}
		mustSucceed(t, s.Close())
		file, err := os.ReadFile(filepath.Join(dir, FileName))
		mustSucceed(t, err)
		if bytes.Contains(file, []byte(tokenSecret)) || bytes.Contains(file, []byte(secretHash(tokenSecret))) {
			t.Error("the file has the secret, or what finds it")
		}
		s = openWithKeys(t, dir)
	}
	mustUpdate(t, s, func(tx *Txn) { tx.DeleteACLToken("a") })
	if s.Snapshot().ACLTokenBySecret(nil, tokenSecret) != nil {
		t.Error("a deleted token is found")
	}
}

// Without its key, a token is in no one's hands; it gets its secret back with the key.
func TestTokenWithoutKeyIsNotFound(t *testing.T) {
	dir := t.TempDir()
	s := openWithKeys(t, dir)
	mustUpdate(t, s, func(tx *Txn) { tx.PutACLToken(&api.ACLToken{AccessorID: "a", SecretID: tokenSecret}) })
	mustSucceed(t, s.Close())
	keys := filepath.Join(dir, "keyring.json")
	mustSucceed(t, os.Rename(keys, keys+".away"))
	s = openWithKeys(t, dir)
	snapshot := s.Snapshot()
	if got := snapshot.ACLToken(nil, "a"); got == nil || got.SecretID != "" {
		t.Errorf("got %+v", got)
	}
	if snapshot.ACLTokenBySecret(nil, tokenSecret) != nil {
		t.Error("found without the key")
	}
	_, err := s.Update(t.Context(), func(tx *Txn) error { tx.PutACLToken(&api.ACLToken{AccessorID: "b", SecretID: "x"}); return nil })
	var keyErr *KeyFileError
	if !errors.As(err, &keyErr) {
		t.Errorf("put without the key: %v", err)
	}
	mustSucceed(t, s.Close())
	mustSucceed(t, os.Rename(keys+".away", keys))
	s = openWithKeys(t, dir)
	if s.Snapshot().ACLTokenBySecret(nil, tokenSecret) == nil {
		t.Error("not found with the key")
	}
}

func TestTwoTokensCannotHaveOneSecret(t *testing.T) {
	s := openWithKeys(t, t.TempDir())
	mustUpdate(t, s, func(tx *Txn) { tx.PutACLToken(&api.ACLToken{AccessorID: "a", SecretID: tokenSecret}) })
	_, err := s.Update(t.Context(), func(tx *Txn) error {
		tx.PutACLToken(&api.ACLToken{AccessorID: "b", SecretID: strings.ToUpper(tokenSecret)})
		return nil
	})
	var duplicate *DuplicateSecretError
	if !errors.As(err, &duplicate) || duplicate.OtherAccessorID != "a" {
		t.Errorf("got %v", err)
	}
}

func TestRolesAreFoundByName(t *testing.T) {
	s := openWithKeys(t, t.TempDir())
	mustUpdate(t, s, func(tx *Txn) {
		tx.PutACLRole(&api.ACLRole{ID: "1", Name: "one"})
		tx.PutACLRole(&api.ACLRole{ID: "2", Name: "two"})
		tx.PutACLPolicy(&api.ACLPolicy{Name: "p", Rules: "r"})
	})
	snapshot := s.Snapshot()
	if r := snapshot.ACLRoleByName(nil, "two"); r == nil || r.ID != "2" || snapshot.ACLRoleByName(nil, "three") != nil || snapshot.ACLRoleByName(nil, "") != nil {
		t.Errorf("got %+v", r)
	}
	if p := snapshot.ACLPolicy(nil, "p"); p == nil || p.ModifyIndex == 0 {
		t.Errorf("got %+v", p)
	}
}
