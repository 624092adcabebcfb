package identity

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/store/keyring"
)

// Algorithm is the signing algorithm for all tokens.
const Algorithm = "RS256"

// maxTokenSize is the maximum size in bytes of a token to verify. This package's tokens have about 800 bytes, plus audiences.
const maxTokenSize = 8 << 10

// tokenHeader is a JSON Web Token's header.
type tokenHeader struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ,omitempty"`
	// Critical names extensions that a verifier must support. This package supports none.
	Critical []string `json:"crit,omitempty"`
}

// Claims are a token's claims. Times are Unix times in seconds; 0 means that the claim is missing.
type Claims struct {
	Subject   string   `json:"sub"`
	Audience  Audience `json:"aud,omitempty"`
	Issuer    string   `json:"iss,omitempty"`
	ID        string   `json:"jti"`
	IssuedAt  int64    `json:"iat"`
	NotBefore int64    `json:"nbf"`
	Expiry    int64    `json:"exp,omitempty"`
	Namespace string   `json:"nomad_namespace"`
	JobID     string   `json:"nomad_job_id"`
	AllocID   string   `json:"nomad_allocation_id"`
	Task      string   `json:"nomad_task"`
}

// Audience is a token's audience: a string in JSON if there is one, otherwise a list.
type Audience []string

// MarshalJSON implements json.Marshaler.
func (a Audience) MarshalJSON() ([]byte, error) {
	if len(a) == 1 {
		return json.Marshal(a[0])
	}
	return json.Marshal([]string(a))
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *Audience) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte(`"`)) {
		*a = make(Audience, 1)
		return json.Unmarshal(text, &(*a)[0])
	}
	return json.Unmarshal(text, (*[]string)(a))
}

var encoding = base64.RawURLEncoding.Strict()

// signToken returns the signed JSON Web Token with the claims.
func signToken(claims Claims, keyID string, key *rsa.PrivateKey) (string, error) {
	head, err := json.Marshal(tokenHeader{Algorithm: Algorithm, KeyID: keyID, Type: "JWT"})
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed := encoding.EncodeToString(head) + "." + encoding.EncodeToString(body)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
	if err != nil {
		return "", err
	}
	return signed + "." + encoding.EncodeToString(signature), nil
}

var errMalformed = errors.New("it is not a JSON Web Token")

// verifySignatureAndDecodeClaims returns a token's claims if one of the keys has signed it. It does not check the claims.
func verifySignatureAndDecodeClaims(token string, keys []keyring.PublicKey) (*Claims, error) {
	parts := strings.Split(token, ".")
	if len(token) > maxTokenSize || len(parts) != 3 || strings.ContainsAny(token, "\r\n") { // the base64 decoder skips line breaks
		return nil, errMalformed
	}
	var head tokenHeader
	if err := decodeTokenPart(parts[0], &head); err != nil {
		return nil, errMalformed
	}
	// The algorithm is compared before a key is looked up: a token does not choose how it is verified.
	if head.Algorithm != Algorithm || len(head.Critical) > 0 {
		return nil, fmt.Errorf("it is not signed with %s", Algorithm)
	}
	i := slices.IndexFunc(keys, func(k keyring.PublicKey) bool { return k.KeyID == head.KeyID })
	if i < 0 {
		return nil, errors.New("the key that has signed it does not exist")
	}
	signature, err := encoding.DecodeString(parts[2])
	if err != nil {
		return nil, errMalformed
	}
	sum := sha256.Sum256([]byte(token[:len(parts[0])+1+len(parts[1])]))
	if err := rsa.VerifyPKCS1v15(keys[i].Key, crypto.SHA256, sum[:], signature); err != nil {
		return nil, errors.New("its signature is wrong")
	}
	var claims Claims
	if err := decodeTokenPart(parts[1], &claims); err != nil {
		return nil, errMalformed
	}
	return &claims, nil
}

func decodeTokenPart(part string, into any) error {
	text, err := encoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// KeySet is a JSON Web Key Set for other services to verify tokens.
type KeySet struct {
	Keys []PublicKey `json:"keys"`
}

// PublicKey is a key in a KeySet. Modulus and Exponent are encoded as RFC 7518 defines.
type PublicKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	KeyID     string `json:"kid"`
	Algorithm string `json:"alg"`
	Modulus   string `json:"n"`
	Exponent  string `json:"e"`
}

func newPublicKey(k keyring.PublicKey) PublicKey {
	return PublicKey{
		Use: "sig", Type: "RSA", KeyID: k.KeyID, Algorithm: Algorithm,
		Modulus: encoding.EncodeToString(k.Key.N.Bytes()), Exponent: encoding.EncodeToString(big.NewInt(int64(k.Key.E)).Bytes()),
	}
}
