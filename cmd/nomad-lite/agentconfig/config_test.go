package agentconfig

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/agent/config"
)

func TestRawExecIsEnabledIfOnlyRootCanSubmitJobs(t *testing.T) {
	isRoot := os.Geteuid() == 0
	for text, enabled := range map[string]bool{
		``:                                     isRoot,
		`ports { http = 0 }`:                   isRoot,
		`bind_addr = "127.0.0.1"`:              isRoot,
		`addresses { http = "::1" }`:           isRoot,
		`bind_addr = "0.0.0.0"`:                false,
		`addresses { http = "192.0.2.1" }`:     false,
		`bind_addr = "localhost"`:              false, // a name can have any address
		`unix_sockets { group = "operators" }`: false,
		`acl { enabled = false }`:              false,
		"client {\n options {\n  \"driver.raw_exec.enable\" = \"0\"\n }\n}":                          false,
		"client {\n options {\n  \"driver.raw_exec.enable\" = \"1\"\n }\n}\nbind_addr = \"0.0.0.0\"": true,
	} {
		var c config.Config
		if diags := c.Parse("agent.hcl", []byte(text)); diags.HasErrors() {
			t.Fatalf("%s: %v", text, diags)
		}
		if got := isRawExecEnabled(&c); got != enabled {
			t.Errorf("%s: enabled is %v, want %v", text, got, enabled)
		}
	}
}
