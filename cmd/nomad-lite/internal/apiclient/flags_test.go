package apiclient

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentdial"
)

// An address by flag or by environment is one that the user has named, whose listener the caller's user makes known.
func TestNamedAddressNeedsNoProof(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/jobs" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("[]")) // an error of the connection is one of the client, too
	}))
	defer server.Close()
	for name, c := range map[string]struct {
		flags Flags
		env   string
	}{
		"by flag":                     {Flags{address: server.URL, token: "t"}, ""},
		"by environment":              {Flags{token: "t"}, server.URL},
		"by environment, no token":    {Flags{}, server.URL},
		"by flag, the check disabled": {Flags{address: server.URL, token: "t", allowUnverified: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NOMAD_ADDR", c.env)
			client, err := c.flags.Client()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := client.Jobs().List(nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAdviceForUnverifiedListeners(t *testing.T) {
	for name, c := range map[string]struct {
		err  agentdial.UnverifiedError
		want string
	}{
		"another account, named":     {agentdial.UnverifiedError{AddressIsGiven: true, HasToken: true}, "-allow-unverified-agent"},
		"another account, not named": {agentdial.UnverifiedError{HasToken: true}, "-allow-unverified-agent"},
		"root, not named":            {agentdial.UnverifiedError{HasToken: true, OwnerIsTrusted: true}, "name it: -address"},
		"root, named, no HTTP":       {agentdial.UnverifiedError{AddressIsGiven: true, HasToken: true, OwnerIsTrusted: true}, "replies to no HTTP request"},
	} {
		if got := WrapErrorWithAdvice("list jobs", errors.Join(&c.err)).Error(); !strings.HasPrefix(got, "list jobs: listener ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
