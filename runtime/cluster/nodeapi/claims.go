package nodeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

// ParseClaims returns a JWT's claims without a check of its signature. Whole numbers are int64.
func ParseClaims(token string) (map[string]any, error) {
	text, err := protocol.EncodedClaims(token)
	switch {
	case errors.Is(err, protocol.ErrNoClaims):
		return nil, errors.New("this node has no identity that the servers have signed")
	case err != nil:
		return nil, fmt.Errorf("decode the claims of the identity: %w", err)
	}
	var claims map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&claims); err != nil {
		return nil, fmt.Errorf("decode the claims of the identity: %w", err)
	}
	for key, value := range claims {
		if number, ok := value.(json.Number); ok {
			claims[key] = parseNumber(number)
		}
	}
	return claims, nil
}

func parseNumber(n json.Number) any {
	if whole, err := n.Int64(); err == nil {
		return whole
	}
	f, _ := n.Float64() // the decoder has checked the form; too large a number is infinite
	return f
}
