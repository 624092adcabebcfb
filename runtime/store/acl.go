package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// secretHash returns the one-way identifier of a token's secret, with which the token is found. As in Nomad, the case of a
// secret's letters does not matter. It returns "" for an empty secret.
func secretHash(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.ToLower(secret)))
	return hex.EncodeToString(sum[:])
}

// encodeTokenParts returns an ACL token's unencrypted and secret parts.
func encodeTokenParts(t *api.ACLToken) (unencrypted, secret []byte, err error) {
	bare := *t
	bare.SecretID = ""
	unencrypted, err = encodeMsgpack(&bare)
	if err == nil && t.SecretID != "" {
		secret, err = encodeMsgpack(t.SecretID)
	}
	return unencrypted, secret, err
}

// ACLPolicy returns the ACL policy with a name.
func (r Reader) ACLPolicy(ws WatchSet, name string) *api.ACLPolicy {
	return rowByKey[api.ACLPolicy](r, ws, ACLPolicies, name)
}

// ACLPolicies returns the ACL policies with the name prefix.
func (r Reader) ACLPolicies(ws WatchSet, prefix string) []*api.ACLPolicy {
	return listRows[api.ACLPolicy](r, ws, ACLPolicies, "id_prefix", prefix)
}

// PutACLPolicy stores an ACL policy.
func (tx *Txn) PutACLPolicy(p *api.ACLPolicy) {
	tx.putObjectSettingIndexes(tableDefsByTable[ACLPolicies], p)
}

// DeleteACLPolicy removes an ACL policy, if there is one.
func (tx *Txn) DeleteACLPolicy(name string) { tx.deleteObjectIfExists(ACLPolicies, name) }

// ACLRole returns the ACL role with an id.
func (r Reader) ACLRole(ws WatchSet, id string) *api.ACLRole {
	return rowByKey[api.ACLRole](r, ws, ACLRoles, id)
}

// ACLRoleByName returns the ACL role with a name.
func (r Reader) ACLRoleByName(ws WatchSet, name string) *api.ACLRole {
	if found := listRows[api.ACLRole](r, ws, ACLRoles, "name", name); name != "" && len(found) > 0 {
		return found[0]
	}
	return nil
}

// ACLRoles returns the ACL roles with the id prefix.
func (r Reader) ACLRoles(ws WatchSet, prefix string) []*api.ACLRole {
	return listRows[api.ACLRole](r, ws, ACLRoles, "id_prefix", prefix)
}

// PutACLRole stores an ACL role.
func (tx *Txn) PutACLRole(r *api.ACLRole) { tx.putObjectSettingIndexes(tableDefsByTable[ACLRoles], r) }

// DeleteACLRole removes an ACL role, if there is one.
func (tx *Txn) DeleteACLRole(id string) { tx.deleteObjectIfExists(ACLRoles, id) }

// ACLToken returns the ACL token with an accessor id, with its secret. The secret is empty if it cannot be decrypted.
func (r Reader) ACLToken(ws WatchSet, accessorID string) *api.ACLToken {
	return rowByKey[api.ACLToken](r, ws, ACLTokens, accessorID)
}

// ACLTokenBySecret returns the ACL token with a secret.
func (r Reader) ACLTokenBySecret(ws WatchSet, secret string) *api.ACLToken {
	if secret == "" {
		return nil
	}
	if found := listRows[api.ACLToken](r, ws, ACLTokens, "secret", secretHash(secret)); len(found) > 0 {
		return found[0]
	}
	return nil
}

// ACLTokens returns the ACL tokens with the prefix of the accessor id, with their secrets.
func (r Reader) ACLTokens(ws WatchSet, prefix string) []*api.ACLToken {
	return listRows[api.ACLToken](r, ws, ACLTokens, "id_prefix", prefix)
}

// PutACLToken stores an ACL token. The update fails with a [KeyFileError] if the key file cannot be read, with a
// [SecretDecryptError] if t has no secret and would replace a secret that cannot be decrypted, and with a
// [DuplicateSecretError] if another token has the secret.
func (tx *Txn) PutACLToken(t *api.ACLToken) {
	err := tx.store.KeyFileErr()
	if stored := tx.ACLToken(nil, t.AccessorID); err == nil && t.SecretID == "" && stored != nil {
		if c := tx.Reader.undecryptedSecretByObject[stored]; c != nil {
			err = c.decryptErr
		}
	}
	if other := tx.ACLTokenBySecret(nil, t.SecretID); err == nil && other != nil && other.AccessorID != t.AccessorID {
		err = &DuplicateSecretError{other.AccessorID}
	}
	if err != nil {
		tx.setFirstError(err)
		return
	}
	tx.putObjectSettingIndexes(tableDefsByTable[ACLTokens], t)
}

// DuplicateSecretError: a token has the secret of another one.
type DuplicateSecretError struct{ OtherAccessorID string }

func (e *DuplicateSecretError) Error() string {
	return fmt.Sprintf("the token with the accessor %s has this secret already: choose another one", e.OtherAccessorID)
}

// DeleteACLToken removes an ACL token, if there is one.
func (tx *Txn) DeleteACLToken(accessorID string) { tx.deleteObjectIfExists(ACLTokens, accessorID) }

// lostBootstrapIndex stands for a bootstrap index that cannot be read, so that a damaged record opens no second bootstrap.
const lostBootstrapIndex = 1

// ACLBootstrapIndex returns the index of the last bootstrap of access control, or 0 if there was none.
func (r Reader) ACLBootstrapIndex() uint64 {
	var index uint64
	_, err := r.ReadAgentRecord(state.ACLBootstrapName, &index)
	if err != nil {
		return lostBootstrapIndex
	}
	return index
}

// PutACLBootstrapIndex stores the transaction's index as the index of the last bootstrap of access control.
func (tx *Txn) PutACLBootstrapIndex() {
	tx.PutAgentRecord(state.ACLBootstrapName, tx.index)
}
