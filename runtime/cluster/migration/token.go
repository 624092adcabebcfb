package migration

import (
	"crypto/subtle"
	"encoding/base64"

	"golang.org/x/crypto/blake2b"
)

// Token returns the token with which another node may read an allocation's data from the node with this secret. An empty secret,
// or one longer than 64 bytes, has no tokens: then Token returns an empty text.
func Token(nodeSecret, allocID string) string {
	if nodeSecret == "" {
		return "" // anybody could make the token
	}
	hash, err := blake2b.New512([]byte(nodeSecret))
	if err != nil {
		return ""
	}
	hash.Write([]byte(allocID))
	return base64.URLEncoding.EncodeToString(hash.Sum(nil))
}

// IsValidToken reports, in constant time, whether token is the one that the secret's node expects for an allocation.
func IsValidToken(nodeSecret, allocID, token string) bool {
	want := Token(nodeSecret, allocID)
	return want != "" && subtle.ConstantTimeCompare([]byte(token), []byte(want)) == 1
}
