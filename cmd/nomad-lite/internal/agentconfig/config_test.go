package agentconfig

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
		`client { servers = ["192.0.2.1"] }`:   false,
		"client {\n server_join {\n  retry_join = [\"192.0.2.1\"]\n }\n}":       false,
		"server {\n enabled = true\n}\nclient {\n servers = [\"192.0.2.1\"]\n}": isRoot,
		"tls {\n http = true\n}": false,
		"client {\n options {\n  \"driver.raw_exec.enable\" = \"0\"\n }\n}":                          false,
		"client {\n options {\n  \"driver.raw_exec.enable\" = \"1\"\n }\n}\nbind_addr = \"0.0.0.0\"": true,
	} {
		var c config.Config
		if diags := c.Parse("agent.hcl", []byte(text)); diags.HasErrors() {
			t.Fatalf("%s: %v", text, diags)
		}
		if got := isRawExecEnabledWithoutBlock(&c); got != enabled {
			t.Errorf("%s: enabled is %v, want %v", text, got, enabled)
		}
	}
}

// A reload changes neither listeners nor servers. So it does not enable raw_exec for those who reach the agent through them.
func TestReloadKeepsWaysIn(t *testing.T) {
	for _, text := range []string{
		`bind_addr = "0.0.0.0"`, `addresses { http = "192.0.2.1" }`, `unix_sockets { group = "operators" }`, `acl { enabled = false }`, `acl { enabled = true }`,
		`client { servers = ["192.0.2.1"] }`, "tls {\n http = true\n}",
	} {
		var running, reloaded config.Config
		if diags := running.Parse("agent.hcl", []byte(text)); diags.HasErrors() {
			t.Fatalf("%s: %v", text, diags)
		}
		if KeepWaysIn(&reloaded, &running); onlyRootCanSubmitJobs(&reloaded) {
			t.Errorf("%s: a reload with an empty file enables raw_exec", text)
		}
	}
}

// raw_exec needs a plugin block on a node, also under an agent that is not root; the node has qemu without one, like Nomad's client.
func TestDriversOfNodeOfCluster(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for block, want := range map[string]string{"": "false", `plugin "raw_exec" { config { enabled = true } }`: `true`} {
		var c config.Config
		if diags := c.Parse("agent.hcl", []byte("client { servers = [\"a\"] }\n"+block)); diags.HasErrors() {
			t.Fatal(diags)
		}
		plugins, err := NewPluginCatalog(&c, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if reason, missing := plugins.NotStartedReasonByDriver()["qemu"]; missing {
			t.Errorf("qemu: %s", reason)
		}
		for _, e := range plugins.Entries() {
			if e.Name != "raw_exec" {
				continue
			}
			if enabled := fmt.Sprintf("%+v", e.Block); !strings.Contains(enabled, want) {
				t.Errorf("%q: the block is %s, want enabled %s", block, enabled, want)
			}
		}
	}
}

func TestDriversOfAnAgentWithoutPluginBlocks(t *testing.T) {
	withPrograms := t.TempDir()
	for _, name := range []string{"java", "qemu-system-x86_64"} {
		if err := os.WriteFile(filepath.Join(withPrograms, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	isRoot := os.Geteuid() == 0
	for _, c := range []struct {
		text, path       string
		exec, java, qemu string // expected entries: "" if there is none, "on demand", "always", or "without root" for "on demand" if the agent is not root
		rawExec          string // the same; "" is "on demand"
	}{
		{path: withPrograms, exec: "on demand", java: "on demand", qemu: "on demand"},
		{path: t.TempDir(), exec: "on demand"},
		{
			text: "plugin \"exec\" {}\nplugin \"java\" {}\nplugin \"qemu\" {}\nplugin \"raw_exec\" {}\n", path: t.TempDir(),
			exec: "always", java: "always", qemu: "always", rawExec: "always",
		},
		{text: "client {\n options {\n  \"driver.denylist\" = \"exec,java,qemu\"\n }\n}", path: withPrograms},
		{text: "client {\n options {\n  \"driver.allowlist\" = \"raw_exec,java\"\n }\n}", path: withPrograms, java: "on demand"},
		{text: "client {\n options {\n  \"driver.raw_exec.enable\" = \"false\"\n }\n}", path: withPrograms, exec: "on demand", java: "on demand", qemu: "without root"},
	} {
		t.Setenv("PATH", c.path)
		var parsed config.Config
		if diags := parsed.Parse("agent.hcl", []byte(c.text)); diags.HasErrors() {
			t.Fatalf("%s: %v", c.text, diags)
		}
		plugins, err := NewPluginCatalog(&parsed, false, nil)
		if err != nil {
			t.Fatalf("%s: %v", c.text, err)
		}
		for driver, want := range map[string]string{"exec": c.exec, "java": c.java, "qemu": c.qemu, "raw_exec": cmp.Or(c.rawExec, "on demand")} {
			switch {
			case driver == "raw_exec":
			case want == "on demand" && !isRoot && driver != "qemu", want == "without root" && isRoot:
				want = ""
			case want == "without root":
				want = "on demand"
			}
			got := ""
			for _, e := range plugins.Entries() {
				switch {
				case e.Name != driver:
				case e.StopsAfterFingerprint:
					got = "on demand"
				default:
					got = "always"
				}
			}
			if got != want {
				t.Errorf("%q: %s is %q, want %q", c.text, driver, got, want)
			}
			if reason, listed := plugins.NotStartedReasonByDriver()[driver]; listed != (got == "" && !IsDriverDeniedByLists(&parsed, driver)) || listed && !strings.Contains(reason, "agent") {
				t.Errorf("%q: %s is not started because %q", c.text, driver, reason)
			}
		}
	}
}

// The drivers whose tasks can get capabilities to change their ids know the users that the agent denies.
func TestDeniedUsersOfDrivers(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "map[]",
		`"user.denylist" = "root,postgres"`: "map[exec:[root postgres] java:[root postgres]]",
		`"user.checked_drivers" = "raw_exec,java"`:                              "map[exec:[] java:[root Administrator]]",
		"\"user.denylist\" = \"www-data\"\n\"user.checked_drivers\" = \"qemu\"": "map[exec:[] java:[]]",
	} {
		var c config.Config
		if diags := c.Parse("agent.hcl", fmt.Appendf(nil, "client {\n options {\n%s\n }\n}", text)); diags.HasErrors() {
			t.Fatalf("%s: %v", text, diags)
		}
		got := map[string]any{}
		for _, name := range []string{"exec", "java", "qemu", "raw_exec", "docker"} {
			if options := BuiltinDeniedUsersOptions(&c, name); options != nil {
				got[name] = options["denied_users"]
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
}

// The reason for which a driver is missing names the cause and the remedy.
func TestReasonsOfDriversNotStarted(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("DOCKER_HOST", "unix:///no/such/socket")
	plugins, err := NewPluginCatalog(&config.Config{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for driver, want := range map[string]string{
		"docker": "no Docker engine: stat /no/such/socket: no such file or directory: start it, or add a block plugin \"docker\" with its endpoint, and reload the agent",
		"java":   "no Java runtime: the program java is in no directory of the agent's PATH (" + os.Getenv("PATH") + "): install one, and reload the agent",
		"qemu":   "the program qemu-system-x86_64 is in no directory of the agent's PATH (" + os.Getenv("PATH") + "): install it, and reload the agent",
	} {
		if got := plugins.NotStartedReasonByDriver()[driver]; got != want {
			t.Errorf("%s: %s, want %s", driver, got, want)
		}
	}
}
