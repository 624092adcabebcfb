package agentproof

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
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

// The values are also in the test of the web page, and in documents for other clients.
func TestValuesStayTheSame(t *testing.T) {
	if got, want := KeyID("operator"), "73ad112f6219aff91dafb683f6991bacf938937e0347d35a42f9d18cedba81da"; got != want {
		t.Errorf("key %s, want %s", got, want)
	}
	want := ConnectionProof{"bd91466b9be4962af831ea65c2005d350870d76ed4db0c7eda41faac3526cd99", "127.0.0.1:4646", "127.0.0.1:50000"}
	if got := newProof("operator", strings.Repeat("0", 64), agent, client); got != want {
		t.Errorf("proof %+v, want %+v", got, want)
	}
}

func TestKeyIDAndNonceHaveOneForm(t *testing.T) {
	if a, b := NewNonce(), NewNonce(); a == b || !isKeyIDOrNonce(a) || !isKeyIDOrNonce(KeyID("token")) {
		t.Errorf("nonces %q and %q", a, b)
	}
	for _, text := range []string{"", "token", strings.Repeat("0", 63), strings.Repeat("0", 65), strings.Repeat("0", 66), strings.Repeat("g", 64), strings.Repeat("0", 63) + "\n"} {
		if isKeyIDOrNonce(text) {
			t.Errorf("%q is accepted", text)
		}
	}
}

// FuzzProof requests proofs with any parameters: a request has both parameters in their form, or no proof.
func FuzzProof(f *testing.F) {
	valid := KeyID("operator")
	f.Add(valid, valid)
	f.Add("", "")
	f.Add("operator", "reader")
	f.Add(strings.ToUpper(valid), valid+"\n")
	f.Add(valid+"&key="+valid, strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, keyID, nonce string) {
		query := url.Values{"key": {keyID}, "nonce": {nonce}}
		r := httptest.NewRequest("GET", Path+"?"+query.Encode(), nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.TCPAddrFromAddrPort(agent)))
		r.RemoteAddr = client.String()
		reply, err := Prove(r, func(asked string) string { return "token of " + asked })
		if wellFormed := isKeyIDOrNonce(keyID) && isKeyIDOrNonce(nonce); (err == nil) != wellFormed || wellFormed != Verify(reply.Proof, "token of "+keyID, nonce, agent, client) {
			t.Errorf("key %q, nonce %q: %+v, error %v", keyID, nonce, reply, err)
		}
	})
}
