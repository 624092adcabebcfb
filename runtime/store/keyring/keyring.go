package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
)

// keySize is the size of an AES-256 key in bytes.
const keySize = 32

// ErrDecrypt means that sealed bytes were changed, or were sealed for another place.
var ErrDecrypt = errors.New("the sealed bytes were changed, or moved from another place")

// ErrKeyActive means that the key is active and cannot be removed.
var ErrKeyActive = errors.New("it is the active key")

// ErrKeyUnknown means that the ring has no key with that id.
var ErrKeyUnknown = errors.New("there is no such key")

// MissingKeyError means that sealed bytes need a key that the ring does not have.
type MissingKeyError struct{ KeyID string }

func (e *MissingKeyError) Error() string { return fmt.Sprintf("there is no key %s", e.KeyID) }

// Ring is a set of keys. The active key seals, every key opens. A key can have an RSA key
// with the same id, which signs tokens. A Ring is immutable: its methods may be called concurrently.
type Ring struct{ keys []key }

type key struct {
	id      uuid.UUID
	secret  []byte
	created time.Time
	active  bool
	aead    cipher.AEAD
	signing *rsa.PrivateKey // nil until WithSigningKey adds it
}

// New returns a ring with one new key.
func New() *Ring { return new(Ring).WithNewKey() }

// WithNewKey returns a ring with the same keys and a new one, which is active.
func (r *Ring) WithNewKey() *Ring {
	keys := slices.Clone(r.keys)
	for i := range keys {
		keys[i].active = false
	}
	secret := make([]byte, keySize)
	rand.Read(secret) // never fails
	k, err := newKey(uuid.New(), secret)
	if err != nil {
		panic(err) // keySize is valid
	}
	k.active, k.created = true, time.Now()
	return &Ring{append(keys, k)}
}

func newKey(id uuid.UUID, secret []byte) (key, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return key{id: id, secret: secret, aead: aead}, err
}

// WithoutKey returns a ring without the key of that id. The error is ErrKeyUnknown or ErrKeyActive.
func (r *Ring) WithoutKey(id string) (*Ring, error) {
	i := slices.IndexFunc(r.keys, func(k key) bool { return k.id.String() == id })
	switch {
	case i < 0:
		return nil, ErrKeyUnknown
	case r.keys[i].active:
		return nil, ErrKeyActive
	}
	return &Ring{slices.Delete(slices.Clone(r.keys), i, i+1)}, nil
}

// Keys returns the metadata of the keys, oldest first, without the secrets.
func (r *Ring) Keys() []*api.RootKeyMeta {
	list := make([]*api.RootKeyMeta, len(r.keys))
	for i, k := range r.keys {
		list[i] = &api.RootKeyMeta{
			KeyID: k.id.String(), Algorithm: api.EncryptionAlgorithmAES256GCM, CreateTime: k.created.UnixNano(), State: api.RootKeyStateInactive,
		}
		if k.active {
			list[i].State = api.RootKeyStateActive
		}
	}
	return list
}

// Active returns the metadata of the active key.
func (r *Ring) Active() *api.RootKeyMeta {
	keys := r.Keys()
	return keys[slices.IndexFunc(keys, func(k *api.RootKeyMeta) bool { return k.State == api.RootKeyStateActive })]
}

// SigningKey returns the id of the active key and its RSA key, which is nil if the active key has none.
func (r *Ring) SigningKey() (id string, signing *rsa.PrivateKey) {
	k := r.keys[slices.IndexFunc(r.keys, func(k key) bool { return k.active })]
	return k.id.String(), k.signing
}

// WithSigningKey returns a ring with the same keys, whose active key has this RSA key.
func (r *Ring) WithSigningKey(signing *rsa.PrivateKey) *Ring {
	keys := slices.Clone(r.keys)
	keys[slices.IndexFunc(keys, func(k key) bool { return k.active })].signing = signing
	return &Ring{keys}
}

// PublicKey is the public half of an RSA key, with the id of its key.
type PublicKey struct {
	KeyID string
	Key   *rsa.PublicKey
}

// PublicKeys returns the public halves of all RSA keys, oldest first.
func (r *Ring) PublicKeys() []PublicKey {
	var list []PublicKey
	for _, k := range r.keys {
		if k.signing != nil {
			list = append(list, PublicKey{k.id.String(), &k.signing.PublicKey})
		}
	}
	return list
}

// Seal encrypts bytes with the active key. Only Open with the same place decrypts them.
func (r *Ring) Seal(plain []byte, place string) []byte {
	k := r.keys[slices.IndexFunc(r.keys, func(k key) bool { return k.active })]
	return k.aead.Seal(k.id[:], nil, plain, []byte(place))
}

// Open decrypts the result of Seal for the same place. The error is a [MissingKeyError] or
// ErrDecrypt.
func (r *Ring) Open(sealed []byte, place string) ([]byte, error) {
	id, ok := parseKeyID(sealed)
	if !ok {
		return nil, ErrDecrypt
	}
	i := slices.IndexFunc(r.keys, func(k key) bool { return k.id == id })
	if i < 0 {
		return nil, &MissingKeyError{id.String()}
	}
	plain, err := r.keys[i].aead.Open(nil, nil, sealed[len(id):], []byte(place))
	if err != nil {
		return nil, ErrDecrypt
	}
	return plain, nil
}

// KeyID returns the id of the key that opens sealed bytes; empty if they are too short.
func KeyID(sealed []byte) string {
	if id, ok := parseKeyID(sealed); ok {
		return id.String()
	}
	return ""
}

func parseKeyID(sealed []byte) (id uuid.UUID, ok bool) { return id, copy(id[:], sealed) == len(id) }
