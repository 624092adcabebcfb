package agentproof

import (
	"net/netip"
	"strings"
	"testing"
)

var (
	agent  = netip.MustParseAddrPort("127.0.0.1:4646")
	client = netip.MustParseAddrPort("127.0.0.1:50000")
)

func TestProofIsValidForOneTokenNonceAndConnection(t *testing.T) {
	nonce := NewNonce()
	proof := Compute("token", nonce, agent, client)
	for name, c := range map[string]struct {
		token, nonce  string
		agent, client string
		want          bool
	}{
		"the same":                  {"token", nonce, "127.0.0.1:4646", "127.0.0.1:50000", true},
		"mapped addresses":          {"token", nonce, "[::ffff:127.0.0.1]:4646", "[::ffff:127.0.0.1]:50000", true},
		"another token":             {"other", nonce, "127.0.0.1:4646", "127.0.0.1:50000", false},
		"another nonce":             {"token", NewNonce(), "127.0.0.1:4646", "127.0.0.1:50000", false},
		"another agent address":     {"token", nonce, "[::1]:4646", "127.0.0.1:50000", false},
		"another agent port":        {"token", nonce, "127.0.0.1:4647", "127.0.0.1:50000", false},
		"another client port":       {"token", nonce, "127.0.0.1:4646", "127.0.0.1:50001", false},
		"another client address":    {"token", nonce, "127.0.0.1:4646", "127.0.0.2:50000", false},
		"the addresses exchanged":   {"token", nonce, "127.0.0.1:50000", "127.0.0.1:4646", false},
		"the identifier as a token": {KeyID("token"), nonce, "127.0.0.1:4646", "127.0.0.1:50000", false},
	} {
		if got := Verify(proof, c.token, c.nonce, netip.MustParseAddrPort(c.agent), netip.MustParseAddrPort(c.client)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for _, wrong := range []string{"", proof[1:], proof + "0", strings.Repeat("0", len(proof)), KeyID("token")} {
		if Verify(wrong, "token", nonce, agent, client) {
			t.Errorf("proof %q is valid", wrong)
		}
	}
}

func TestKeyIDAndNonceHaveOneForm(t *testing.T) {
	if a, b := NewNonce(), NewNonce(); a == b || !IsKeyIDOrNonce(a) || !IsKeyIDOrNonce(KeyID("token")) {
		t.Errorf("nonces %q and %q", a, b)
	}
	for _, text := range []string{"", "token", strings.Repeat("0", 63), strings.Repeat("0", 65), strings.Repeat("0", 66), strings.Repeat("g", 64), strings.Repeat("0", 63) + "\n"} {
		if IsKeyIDOrNonce(text) {
			t.Errorf("%q is accepted", text)
		}
	}
}
