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

// SigningKeys gives access to the RSA keys that sign the tokens of workload identities. Each key in the key file can have
// one. The methods return a [KeyFileError], or ErrNoKeyFile if the store has no keys.
type SigningKeys struct{ store *Store }

// SigningKeys returns the RSA keys of the store.
func (s *Store) SigningKeys() SigningKeys { return SigningKeys{s} }

// ActiveKey returns the id of the active key and its RSA key. If the active key has no RSA key, it makes and stores one,
// which takes up to a second.
func (k SigningKeys) ActiveKey(ctx context.Context) (id string, signing *rsa.PrivateKey, err error) {
	sealer := k.store.sealer
	if id, signing, err = sealer.signingKey(); err != nil || signing != nil {
		return id, signing, err
	}
	sealer.signingKeyMu.Lock()
	defer sealer.signingKeyMu.Unlock()
	if id, signing, err = sealer.signingKey(); err != nil || signing != nil {
		return id, signing, err
	}
	// The key is not made in the goroutine of the writer, because that would block other updates.
	made, err := rsa.GenerateKey(rand.Reader, rsaKeySize)
	if err != nil {
		return "", nil, fmt.Errorf("make a key that signs tokens: %w", err)
	}
	err = k.store.runExclusive(ctx, func() error {
		ring, err := sealer.keysOrError()
		if err != nil {
			return err
		}
		id, _ = ring.SigningKey()
		return sealer.saveKeys(ring.WithSigningKey(made))
	})
	if err != nil {
		return "", nil, err
	}
	return id, made, nil
}

// PublicKeys returns the public halves of all RSA keys, oldest first.
func (k SigningKeys) PublicKeys() ([]keyring.PublicKey, error) {
	ring, err := k.store.sealer.keysOrError()
	if err != nil {
		return nil, err
	}
	return ring.PublicKeys(), nil
}

// signingKey returns the id of the active key and its RSA key, or nil if it has no RSA key yet.
func (s *sealer) signingKey() (id string, signing *rsa.PrivateKey, err error) {
	ring, err := s.keysOrError()
	if err != nil {
		return "", nil, err
	}
	id, signing = ring.SigningKey()
	return id, signing, nil
}
