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

// SigningKeys are the RSA keys of the keys of a store. They sign the tokens of workload identities. The errors of
// its methods are a [KeyFileError], or ErrNoKeyFile if the store has no keys.
type SigningKeys struct{ store *Store }

// SigningKeys returns the RSA keys of the keys.
func (s *Store) SigningKeys() SigningKeys { return SigningKeys{s} }

// Active returns the active key's id and its RSA key. The first call for a key makes the RSA key
// and stores it, which takes up to a second.
func (k SigningKeys) Active(ctx context.Context) (id string, signing *rsa.PrivateKey, err error) {
	sealer := k.store.sealer
	if id, signing, err = sealer.signingKey(); err != nil || signing != nil {
		return id, signing, err
	}
	sealer.signingKeyMu.Lock()
	defer sealer.signingKeyMu.Unlock()
	if id, signing, err = sealer.signingKey(); err != nil || signing != nil {
		return id, signing, err
	}
	// The key is made here because nothing in the goroutine of the writer may take long.
	made, err := rsa.GenerateKey(rand.Reader, rsaKeySize)
	if err != nil {
		return "", nil, fmt.Errorf("make a key that signs tokens: %w", err)
	}
	err = k.store.runExclusive(ctx, func() error {
		ring, err := sealer.loadedRing()
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

// Public returns the public halves of the RSA keys of all keys that were not removed, oldest first.
func (k SigningKeys) Public() ([]keyring.PublicKey, error) {
	ring, err := k.store.sealer.loadedRing()
	if err != nil {
		return nil, err
	}
	return ring.PublicKeys(), nil
}

// signingKey returns the active key's id and its RSA key, which is nil if it was not made yet.
func (s *sealer) signingKey() (id string, signing *rsa.PrivateKey, err error) {
	ring, err := s.loadedRing()
	if err != nil {
		return "", nil, err
	}
	id, signing = ring.SigningKey()
	return id, signing, nil
}
