package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/agentproof"
)

// serveOn serves the API on a listener until the end of the test.
func (f *fixture) serveOn(t *testing.T, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- f.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// requestProof requests a proof over c.
func requestProof(t *testing.T, c net.Conn, keyID, nonce string) (code int, reply agentproof.ConnectionProof) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://127.0.0.1" + agentproof.Path + "?key=" + url.QueryEscape(keyID) + "&nonce=" + url.QueryEscape(nonce))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode == http.StatusOK {
		if err := json.NewDecoder(r.Body).Decode(&reply); err != nil {
			t.Fatal(err)
		}
	}
	return r.StatusCode, reply
}

func TestProofIsForItsConnection(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Log(err) // without IPv6
			continue
		}
		readOnlyFixture(t).serveOn(t, l)
		for _, target := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
			c, err := net.Dial("tcp", net.JoinHostPort(target, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)))
			if err != nil {
				continue // the listener does not listen at the address
			}
			ends := func(c net.Conn) (agent, client netip.AddrPort) {
				return c.RemoteAddr().(*net.TCPAddr).AddrPort(), c.LocalAddr().(*net.TCPAddr).AddrPort()
			}
			for token, want := range map[string]bool{"operator": true, "reader": true, "wrong": false} {
				nonce := agentproof.NewNonce()
				conn, err := net.Dial("tcp", c.RemoteAddr().String())
				if err != nil {
					t.Fatal(err)
				}
				code, reply := requestProof(t, conn, agentproof.KeyID(token), nonce)
				agent, client := ends(conn)
				if got := agentproof.Verify(reply.Proof, token, nonce, agent, client); code != 200 || got != want {
					t.Errorf("%s at %s, token %q: %d, valid %v, want %v", target, listen, token, code, got, want)
				}
				if _, other := ends(c); agentproof.Verify(reply.Proof, token, nonce, agent, other) {
					t.Errorf("%s at %s: the proof is valid for another connection", target, listen)
				}
				if len(reply.Proof) != len(nonce) {
					t.Errorf("token %q: the proof %q has another form than others", token, reply.Proof)
				}
			}
			c.Close()
		}
	}
}

func TestNoProofOverUnixSocket(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	readOnlyFixture(t).serveOn(t, l)
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := requestProof(t, c, agentproof.KeyID("operator"), agentproof.NewNonce()); code != 400 {
		t.Errorf("status %d", code)
	}
}
