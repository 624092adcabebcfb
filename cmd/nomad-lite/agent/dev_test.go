package agent

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

// An agent in development mode that runs as root opens a TCP port only if the user requests it.
func TestPortInDevelopmentMode(t *testing.T) {
	root := os.Geteuid() == 0
	for text, want := range map[string]bool{
		``:                              !root,
		`region = "here"`:               !root,
		`tls { http = true }`:           !root,
		`acl { enabled = true }`:        !root,
		`advertise { http = "1.2.3.4"}`: !root,
		`ports { http = 0 }`:            true,
		`ports { http = 4646 }`:         true,
		`bind_addr = "127.0.0.1"`:       true,
		`addresses { http = "::1" }`:    true,
		`acl { enabled = false }`:       true,
	} {
		var c config.Config
		if diags := c.Parse("agent.hcl", []byte(text)); diags.HasErrors() {
			t.Fatalf("%s: %v", text, diags)
		}
		if got := shouldServeTCP(&c, true); got != want {
			t.Errorf("with %q it is served over TCP: %v, want %v", text, got, want)
		}
		if !shouldServeTCP(&c, false) {
			t.Errorf("with %q an agent with a data directory is not served over TCP", text)
		}
	}
	if c, err := (options{devMode: true, bindAddr: "127.0.0.1"}).loadConfig(false, &cli.Streams{}); err != nil || !shouldServeTCP(c, true) {
		t.Errorf("with -bind it is not served over TCP (%v)", err)
	}
}
