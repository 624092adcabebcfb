package protocol

import (
	"encoding/base64"
	"errors"
	"strings"
)

// ErrNoClaims is the error for a token that is not a JSON Web Token, such as a node's secret.
var ErrNoClaims = errors.New("it is no token with claims")

// EncodedClaims returns a JSON Web Token's claims as JSON. It does not verify the token. A part that is not base64 is another
// error than ErrNoClaims.
func EncodedClaims(token string) ([]byte, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, ErrNoClaims
	}
	return base64.RawURLEncoding.DecodeString(parts[1])
}
