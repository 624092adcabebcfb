package root

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// The errors of clients that cannot connect, or are rejected, contain advice.
func TestConnectionErrors(t *testing.T) {
	jobs := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Nomad-Token") != "secret" {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		textHandler("[]")(w, r)
	}
	plain := httptest.NewServer(http.HandlerFunc(jobs))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.HandlerFunc(jobs))
	defer secure.Close()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(authority, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ flags, says string }{
		"nobody listens":          {"-address http://127.0.0.1:1", "Is an agent running?"},
		"no socket":               {"-address unix:///nowhere.sock", "Is an agent running?"},
		"no scheme":               {"-address 127.0.0.1", "with its scheme in -address"},
		"no token":                {"-address " + plain.URL, "export NOMAD_TOKEN="},
		"wrong token":             {"-token x -address " + plain.URL, "export NOMAD_TOKEN="},
		"let in":                  {"-token secret -address " + plain.URL, ""},
		"TLS where there is none": {"-address https" + strings.TrimPrefix(plain.URL, "http"), "write http:// in -address"},
		"no TLS where there is":   {"-address http" + strings.TrimPrefix(secure.URL, "https"), "write https:// in -address"},
		"unknown authority":       {"-address " + secure.URL, "with -ca-cert"},
		"wrong name":              {"-tls-server-name nope -ca-cert " + authority + " -address " + secure.URL, "with -tls-server-name"},
		"TLS":                     {"-token secret -ca-cert " + authority + " -address " + secure.URL, ""},
		"TLS without looking":     {"-token secret -tls-skip-verify -address " + secure.URL, ""},
		"no such file":            {"-ca-cert /nowhere.pem -address " + secure.URL, "/nowhere.pem"},
		"no address at all":       {"-address ://", "address \"://\""},
	} {
		t.Run(name, func(t *testing.T) {
			var out, stderrBuf strings.Builder
			code := Execute(append([]string{"job", "status"}, strings.Fields(c.flags)...), &cli.Streams{Out: &out, Err: &stderrBuf})
			if (code == 0) != (c.says == "") || !strings.Contains(stderrBuf.String(), c.says) {
				t.Errorf("code %d, and %q; want %q", code, stderrBuf.String(), c.says)
			}
		})
	}
}
