package apiclient

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// An error has the right that is missing, and a stream that the agent has ended has the reason.
func TestClientExplainsReplies(t *testing.T) {
	const reason = "Permission denied: the token has ended"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/agent/monitor" {
			io.WriteString(w, "line\n")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+endOfStreamTrailer, reason)
			return
		}
		w.Header().Set(missingRightHeader, "node:read")
		http.Error(w, "Permission denied", http.StatusForbidden)
	}))
	defer server.Close()
	c, err := (&Flags{address: server.URL}).NewClient(&api.Config{Address: server.URL, TLSConfig: &api.TLSConfig{}, SecretID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Nodes().List(nil)
	want := "list: Permission denied: the token lacks node:read\nShow what the token may do: nomad-lite acl policy self"
	if text := WrapErrorWithAdvice("list", err).Error(); text != want {
		t.Errorf("error %q, want %q", text, want)
	}
	body, err := c.Raw().Response("/v1/agent/monitor", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); string(text) != "line\n" || err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("stream %q, %v", text, err)
	}
}
