package config

import (
	"os"
	"path/filepath"
	"testing"
)

func TestServerHTTPAddr(t *testing.T) {
	for text, valid := range map[string]bool{
		"https://nomad.example.com:4646": true, "http://10.0.0.1": true, "https://[::1]:4646/prefix": true,
		"nomad.example.com:4646": false, "10.0.0.1": false, "unix:///x": false, "https://": false, "https://user@host": false, "": false,
	} {
		if err := checkServerURL(text); (err == nil) != valid {
			t.Errorf("%q: got %v", text, err)
		}
	}
	if (&Cluster{}).ServerURL() != nil {
		t.Error("an empty address has a URL")
	}
	if u := (&Cluster{ServerHTTPAddr: "https://nomad.example.com:4646"}).ServerURL(); u == nil || u.Host != "nomad.example.com:4646" {
		t.Errorf("got %v", u)
	}
}

// A file of a Nomad agent that is server and client in one makes no node of a cluster.
func TestServerIsNoNode(t *testing.T) {
	for _, c := range []Cluster{{ServerEnabled: true, Servers: []string{"a"}}, {ServerEnabled: true, RetryJoin: []string{"a"}}, {}} {
		if c.IsNode() || len(c.ServerAddrs()) > 0 {
			t.Errorf("%+v is a node", c)
		}
	}
	if c := (Cluster{RetryJoin: []string{"a"}}); !c.IsNode() {
		t.Errorf("%+v is no node", c)
	}
}

// An agent that schedules for itself stops all jobs, and says so.
func TestIgnoreSystemJobsNeedsServers(t *testing.T) {
	for servers, want := range map[string]int{"": 1, `servers = ["a"]`: 0} {
		file := filepath.Join(t.TempDir(), "a.hcl")
		text := "client {\n" + servers + "\ndrain_on_shutdown {\nignore_system_jobs = true\n}\n}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, diags := Load([]string{file}, nil, false)
		if len(diags) != want || diags.HasErrors() || !c.DrainOnExit.IgnoreSystemJobs {
			t.Errorf("%q: %v, settings %+v", servers, diags, c.DrainOnExit)
		}
	}
}
