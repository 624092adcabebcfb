package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// TestSecuredCluster joins servers that verify certificates and their names, control access, and accept only nodes with an
// introduction token. A node whose certificate or token is wrong stays out. New certificates need no restart of the agent. A command in a task without isolation needs the
// capability alloc-node-exec.
func TestSecuredCluster(t *testing.T) {
	certificates := t.TempDir()
	mint := func() {
		t.Helper()
		cmd := exec.Command("mint", "ca", "server.global.nomad", "client.global.nomad", "client.other.nomad")
		cmd.Dir = certificates
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	mint()
	tls := func(name string) string {
		return fmt.Sprintf("tls {\n  rpc = true\n  verify_server_hostname = true\n  ca_file = %q\n  cert_file = %q\n  key_file = %q\n}\n",
			filepath.Join(certificates, "ca.pem"), filepath.Join(certificates, name+".pem"), filepath.Join(certificates, name+".key"))
	}
	c := startCluster(t, serverOptions{
		server: "  client_introduction {\n    enforcement = \"strict\"\n  }\n", config: tls("server.global.nomad"), access: true,
	})
	introduction := func(name string) string {
		t.Helper()
		response, _, err := c.api().ACLIdentity().CreateClientIntroductionToken(&api.ACLIdentityClientIntroductionTokenRequest{NodeName: name, NodePool: "default"}, nil)
		c.check(err)
		return fmt.Sprintf("client {\n  intro_token = %q\n}\n", response.JWT)
	}
	const access = "acl {\n  enabled = true\n}\n"

	for _, refused := range []struct{ name, config, log string }{
		{"unencrypted", introduction("unencrypted"), "servers cannot be reached"},
		{"other-region", introduction("other-region") + tls("client.other.nomad"), "servers cannot be reached"},
		{"without-token", tls("client.global.nomad"), "Permission denied"},
		{"token-of-another", introduction("another") + tls("client.global.nomad"), "Permission denied"},
	} {
		n := c.newNode(t, refused.name, access, refused.config)
		n.start()
		n.awaitLog(refused.log)
		if stub, err := n.record(); stub != nil || err != nil {
			t.Errorf("the servers have the node %s: %+v, %v", refused.name, stub, err)
		}
		n.end(unix.SIGTERM)
	}

	n := c.newNode(t, "lite", access, introduction("lite"), tls("client.global.nomad"))
	n.start()
	n.awaitStatus("ready")
	l := newLedger(t)
	c.register(l.newJob("web", 1))
	running := c.awaitRunning(l, "web", 1)

	// The node has an identity now, and needs no introduction.
	config, err := os.ReadFile(n.configFile())
	if err != nil {
		t.Fatal(err)
	}
	n.end(unix.SIGKILL)
	config = bytes.Replace(config, []byte(introductionTokenLine(config)), nil, 1)
	if err := os.WriteFile(n.configFile(), config, 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.awaitStatus("ready")
	n.checkUntouched(l, "the agent was killed", running)

	// All certificates are replaced, those of the authority too.
	c.servers[0].kill()
	mint()
	c.servers[0].start()
	if err := n.process.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	c.awaitLeader()
	for id := range running {
		n.checkReachable("the certificates were replaced", id)
	}
	n.checkUntouched(l, "the certificates were replaced", running)

	for name, test := range map[string]struct {
		capabilities string
		allowed      bool
	}{
		"exec":      {`"read-job", "alloc-exec"`, false},
		"node-exec": {`"read-job", "alloc-exec", "alloc-node-exec"`, true},
	} {
		_, err := c.api().ACLPolicies().Upsert(&api.ACLPolicy{
			Name: name, Rules: fmt.Sprintf("namespace \"default\" {\n  capabilities = [%s]\n}\nnode {\n  policy = \"read\"\n}\n", test.capabilities),
		}, nil)
		c.check(err)
		token, _, err := c.api().ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
		c.check(err)
		user, err := api.NewClient(&api.Config{Address: c.servers[0].Address(), SecretID: token.SecretID})
		c.check(err)
		defer user.Close()
		for id := range running {
			var out, stderr bytes.Buffer
			code, err := user.Allocations().Exec(t.Context(), &api.Allocation{ID: id, NodeID: n.id}, "t", false, []string{"echo", "ran"}, strings.NewReader(""), &out, &stderr, nil, nil)
			if test.allowed && (err != nil || code != 0 || out.String() != "ran\n") {
				t.Errorf("exec with %s: %d, %v, %q, %q", test.capabilities, code, err, out.String(), stderr.String())
			}
			if !test.allowed && (err == nil || !strings.Contains(err.Error(), "Permission denied") || out.Len() > 0) {
				t.Errorf("exec with %s: %d, %v, %q, want permission denied", test.capabilities, code, err, out.String())
			}
		}
	}
}

// introductionTokenLine returns the line of a configuration with the introduction token.
func introductionTokenLine(config []byte) string {
	for line := range strings.Lines(string(config)) {
		if strings.Contains(line, "intro_token") {
			return line
		}
	}
	return ""
}
