package httpapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func TestKeyring(t *testing.T) {
	f := newFixture(t, nil)
	ids := func() (all []string) {
		t.Helper()
		for _, k := range decodeReply[[]api.RootKeyMeta](t, f.send("GET", "/v1/operator/keyring/keys", nil)) {
			all = append(all, k.KeyID+" "+string(k.State))
		}
		return all
	}
	first := ids()
	if len(first) != 1 || !strings.HasSuffix(first[0], " active") {
		t.Fatalf("keys %v", first)
	}
	old, _, _ := strings.Cut(first[0], " ")
	f.runRequests(t, []requestCase{
		{"put", "PUT", "/v1/var/app/db", `{"Items": {"password": "hunter2"}}`, 200, ""},
		{"rotate", "PUT", "/v1/operator/keyring/rotate", "", 200, `…"State":"active"`},
		{"another algorithm", "PUT", "/v1/operator/keyring/rotate?algo=xchacha20", "", 400, "the algorithm of a key must be aes256-gcm"},
		{"later", "PUT", "/v1/operator/keyring/rotate?publish_time=1", "", 400, ""},
		{"no truth value", "PUT", "/v1/operator/keyring/rotate?full=zz", "", 500, ""},
		{"remove what is used", "DELETE", "/v1/operator/keyring/key/" + old + "?force=false", "", 409, "…1 records are sealed with it"},
		{"remove what is not there", "DELETE", "/v1/operator/keyring/key/nope", "", 404, ""},
		{"rotate all", "PUT", "/v1/operator/keyring/rotate?full=true", "", 200, ""},
		{"remove", "DELETE", "/v1/operator/keyring/key/" + old + "?force=false", "", 200, ""},
		{"read", "GET", "/v1/var/app/db", "", 200, "…hunter2"},
	})
	now := ids()
	if len(now) != 2 || strings.HasPrefix(now[0], old) || !strings.HasSuffix(now[1], " active") {
		t.Errorf("keys %v", now)
	}
	active, _, _ := strings.Cut(now[1], " ")
	f.runRequests(t, []requestCase{{"remove the active key", "DELETE", "/v1/operator/keyring/key/" + active + "?force=true", "", 409, "…active"}})
}

func TestVariablesWithoutTheirKey(t *testing.T) {
	dir := t.TempDir()
	config := store.Config{StateFilePath: filepath.Join(dir, "state.db"), KeyFile: filepath.Join(dir, "keyring.json"), Logger: hclog.NewNullLogger()}
	open := func() *fixture {
		s, err := store.Open(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		f := newFixture(t, func(c *Config) { c.Store = s })
		f.store = s
		return f
	}
	f := open()
	f.runRequests(t, []requestCase{{"put", "PUT", "/v1/var/app/db", `{"Items": {"password": "hunter2"}}`, 200, ""}})
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(config.KeyFile); err != nil {
		t.Fatal(err)
	}
	f = open()
	where := "…" + config.KeyFile
	f.runRequests(t, []requestCase{
		{"read", "GET", "/v1/var/app/db", "", 500, where},
		{"list", "GET", "/v1/vars", "", 200, `…"Path":"app/db"`},
		{"put", "PUT", "/v1/var/app/other", `{"Items": {"a": "b"}}`, 500, where},
		{"overwrite", "PUT", "/v1/var/app/db", `{"Items": {"a": "b"}}`, 500, where},
		{"delete", "DELETE", "/v1/var/app/db", "", 500, where},
		{"lock", "PUT", "/v1/var/app/db?lock-acquire", `{}`, 500, where},
		{"keys", "GET", "/v1/operator/keyring/keys", "", 500, where},
		{"remove a key", "DELETE", "/v1/operator/keyring/key/x", "", 500, where},
		{"give up", "PUT", "/v1/operator/keyring/rotate", "", 200, ""},
		{"read what is sealed", "GET", "/v1/var/app/db", "", 500, `…variable "default/app/db" is sealed with key`},
		{"lock what is sealed", "PUT", "/v1/var/app/db?lock-acquire", `{}`, 500, "…is sealed with key"},
		{"put again", "PUT", "/v1/var/app/other", `{"Items": {"a": "b"}}`, 200, ""},
		{"write what is sealed again", "PUT", "/v1/var/app/db", `{"Items": {"a": "b"}}`, 200, ""},
		{"read again", "GET", "/v1/var/app/db", "", 200, `…"a":"b"`},
	})
}
