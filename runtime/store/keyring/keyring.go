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

// keySize is an AES-256 key's size in bytes.
const keySize = 32

// ErrDecrypt: sealed bytes were changed, or were sealed with other additional data.
var ErrDecrypt = errors.New("the sealed bytes were changed, or moved from another place")

// ErrKeyActive: the key is the active key, which cannot be removed.
var ErrKeyActive = errors.New("it is the active key")

// ErrKeyUnknown: the ring has no key with that id.
var ErrKeyUnknown = errors.New("there is no such key")

// MissingKeyError: sealed bytes need a key that is not in the ring.
type MissingKeyError struct{ KeyID string }

func (e *MissingKeyError) Error() string { return fmt.Sprintf("there is no key %s", e.KeyID) }

// Ring is a set of AES keys. Seal encrypts with the active key, Open decrypts with any of them. A key can have an RSA key,
// which signs tokens. A Ring is immutable, so its methods may be called concurrently.
type Ring struct{ keys []key }

type key struct {
	id         uuid.UUID
	aesKey     []byte
	createTime time.Time
	isActive   bool
	aead       cipher.AEAD
	signingKey *rsa.PrivateKey // nil until WithActiveSigningKey adds it
}

// NewRing returns a ring with one new key.
func NewRing() *Ring { return new(Ring).WithNewKey() }

// WithNewKey returns a ring with r's keys and a new active key.
func (r *Ring) WithNewKey() *Ring {
	keys := slices.Clone(r.keys)
	for i := range keys {
		keys[i].isActive = false
	}
	secret := make([]byte, keySize)
	rand.Read(secret) // never fails
	k, err := newKey(uuid.New(), secret)
	if err != nil {
		panic(err) // keySize is valid
	}
	k.isActive, k.createTime = true, time.Now()
	return &Ring{append(keys, k)}
}

func newKey(id uuid.UUID, aesKey []byte) (key, error) {
	block, err := aes.NewCipher(aesKey)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return key{id: id, aesKey: aesKey, aead: aead}, err
}

// WithoutKey returns a ring without the key with that id. The error is ErrKeyUnknown or ErrKeyActive.
func (r *Ring) WithoutKey(id string) (*Ring, error) {
	i := slices.IndexFunc(r.keys, func(k key) bool { return k.id.String() == id })
	switch {
	case i < 0:
		return nil, ErrKeyUnknown
	case r.keys[i].isActive:
		return nil, ErrKeyActive
	}
	return &Ring{slices.Delete(slices.Clone(r.keys), i, i+1)}, nil
}

// KeyMetadata returns the metadata of all keys, oldest first, without the secrets.
func (r *Ring) KeyMetadata() []*api.RootKeyMeta {
	list := make([]*api.RootKeyMeta, len(r.keys))
	for i, k := range r.keys {
		list[i] = &api.RootKeyMeta{
			KeyID: k.id.String(), Algorithm: api.EncryptionAlgorithmAES256GCM, CreateTime: k.createTime.UnixNano(), State: api.RootKeyStateInactive,
		}
		if k.isActive {
			list[i].State = api.RootKeyStateActive
		}
	}
	return list
}

// ActiveKeyMetadata returns the active key's metadata.
func (r *Ring) ActiveKeyMetadata() *api.RootKeyMeta {
	keys := r.KeyMetadata()
	return keys[slices.IndexFunc(keys, func(k *api.RootKeyMeta) bool { return k.State == api.RootKeyStateActive })]
}

// SigningKey returns the active key's id and its RSA key, which is nil if it has none.
func (r *Ring) SigningKey() (id string, rsaKeyOrNil *rsa.PrivateKey) {
	k := r.keys[slices.IndexFunc(r.keys, func(k key) bool { return k.isActive })]
	return k.id.String(), k.signingKey
}

// WithActiveSigningKey returns a ring with r's keys, in which the active key has the given RSA key.
func (r *Ring) WithActiveSigningKey(rsaKey *rsa.PrivateKey) *Ring {
	keys := slices.Clone(r.keys)
	keys[slices.IndexFunc(keys, func(k key) bool { return k.isActive })].signingKey = rsaKey
	return &Ring{keys}
}

// PublicKey is the public half of the RSA key for the key with the id KeyID.
type PublicKey struct {
	KeyID string
	Key   *rsa.PublicKey
}

// PublicKeys returns the public halves of all RSA keys, oldest first.
func (r *Ring) PublicKeys() []PublicKey {
	var list []PublicKey
	for _, k := range r.keys {
		if k.signingKey != nil {
			list = append(list, PublicKey{k.id.String(), &k.signingKey.PublicKey})
		}
	}
	return list
}

// Seal encrypts bytes with the active key. Open decrypts them only if it is called with the same additionalData.
func (r *Ring) Seal(plain []byte, additionalData string) (sealed []byte) {
	k := r.keys[slices.IndexFunc(r.keys, func(k key) bool { return k.isActive })]
	return k.aead.Seal(k.id[:], nil, plain, []byte(additionalData))
}

// Open decrypts Seal's result for the same additionalData. The error is a [MissingKeyError] or ErrDecrypt.
func (r *Ring) Open(sealed []byte, additionalData string) (plain []byte, err error) {
	id, ok := keyIDOfSealed(sealed)
	if !ok {
		return nil, ErrDecrypt
	}
	i := slices.IndexFunc(r.keys, func(k key) bool { return k.id == id })
	if i < 0 {
		return nil, &MissingKeyError{id.String()}
	}
	plain, err = r.keys[i].aead.Open(nil, nil, sealed[len(id):], []byte(additionalData))
	if err != nil {
		return nil, ErrDecrypt
	}
	return plain, nil
}

// SealingKeyID returns the id of the key that sealed the bytes, or "" if they are too short.
func SealingKeyID(sealed []byte) string {
	if id, ok := keyIDOfSealed(sealed); ok {
		return id.String()
	}
	return ""
}

func keyIDOfSealed(sealed []byte) (id uuid.UUID, ok bool) { return id, copy(id[:], sealed) == len(id) }
