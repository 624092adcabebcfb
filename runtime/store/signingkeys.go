package store

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"fmt"

	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// rsaKeySize is the size of the RSA keys in bits.
const rsaKeySize = 2048

// SigningKeys gives access to the RSA keys for signing workload identity tokens. Each key in the key file can have one. The
// methods return a [KeyFileError], or ErrNoKeyFile if the store has no keys.
type SigningKeys struct{ store *Store }

// SigningKeys returns the store's RSA keys.
func (s *Store) SigningKeys() SigningKeys { return SigningKeys{s} }

// EnsureActiveKey returns the active key's id and its RSA key. If the active key has no RSA key, it makes and stores one, which
// takes up to a second.
func (k SigningKeys) EnsureActiveKey(ctx context.Context) (keyID string, rsaKey *rsa.PrivateKey, err error) {
	sealer := k.store.sealer
	if keyID, rsaKey, err = sealer.activeSigningKey(); err != nil || rsaKey != nil {
		return keyID, rsaKey, err
	}
	sealer.signingKeyCreationMu.Lock()
	defer sealer.signingKeyCreationMu.Unlock()
	if keyID, rsaKey, err = sealer.activeSigningKey(); err != nil || rsaKey != nil {
		return keyID, rsaKey, err
	}
	// The writer goroutine does not make the key, because that would block other updates.
	made, err := rsa.GenerateKey(rand.Reader, rsaKeySize)
	if err != nil {
		return "", nil, fmt.Errorf("make a key that signs tokens: %w", err)
	}
	err = k.store.runBetweenTransactions(ctx, func() error {
		ring, err := sealer.keyringOrError()
		if err != nil {
			return err
		}
		keyID, _ = ring.SigningKey()
		return sealer.saveAndUseKeyring(ring.WithActiveSigningKey(made))
	})
	if err != nil {
		return "", nil, err
	}
	return keyID, made, nil
}

// PublicKeys returns the public halves of all RSA keys, oldest first.
func (k SigningKeys) PublicKeys() ([]keyring.PublicKey, error) {
	ring, err := k.store.sealer.keyringOrError()
	if err != nil {
		return nil, err
	}
	return ring.PublicKeys(), nil
}

// activeSigningKey returns the active key's id and its RSA key, or nil if it has no RSA key yet.
func (s *sealer) activeSigningKey() (id string, rsaKeyOrNil *rsa.PrivateKey, err error) {
	ring, err := s.keyringOrError()
	if err != nil {
		return "", nil, err
	}
	id, rsaKeyOrNil = ring.SigningKey()
	return id, rsaKeyOrNil, nil
}
