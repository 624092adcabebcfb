package httpapi

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/agent/audit"
)

// auditLine is a line of the audit log, with the fields that the test compares.
type auditLine struct{ stage, client, request, object, result string }

func readAuditLog(t *testing.T, path string) (lines []auditLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e struct{ Payload audit.Record }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		p := e.Payload
		l := auditLine{stage: string(p.Stage), client: p.Auth.Name, request: p.Request.Operation + " " + p.Request.Endpoint + " in " + p.Request.Namespace.ID, object: p.Request.Object}
		if p.Response != nil {
			l.result = http.StatusText(p.Response.StatusCode) + p.Response.Error
		}
		lines = append(lines, l)
	}
	return lines
}

func TestAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Settings{Sinks: []audit.Sink{{Path: path}}, Filters: []audit.Filter{{Endpoints: []string{"/v1/acl/policy/*", "/v1/acl/bootstrap"}}}}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	f := newACLFixture(t, func(c *Config) { c.AuditLog = log }).bootstrap(t)
	f.putPolicy(t, "p", `namespace "default" {
  variables {
    path "*" { capabilities = ["write"] }
  }
}`)
	var token struct{ AccessorID, SecretID string }
	f.mustDecode(t, f.sendAs(f.management, "PUT", "/v1/acl/token", `{"Name": "alice\nbob", "Type": "client", "Policies": ["p"]}`), &token)
	for _, request := range []struct{ secret, method, target, body string }{
		{token.SecretID, "PUT", "/v1/var/a", `{"Items": {"k": "hidden"}}`},
		{token.SecretID, "GET", "/v1/nodes?namespace=prod", ""},
		{unknownSecret, "GET", "/v1/jobs", ""},
		{"", "GET", "/v1/job/web", ""},
		{"", "GET", "/ui/", ""},
	} {
		f.sendAs(request.secret, request.method, request.target, request.body)
	}
	want := []auditLine{
		{"OperationReceived", "Bootstrap Token", "PUT /v1/acl/token in default", "", ""},
		{"OperationComplete", "Bootstrap Token", "PUT /v1/acl/token in default", token.AccessorID, "OK"},
		{"OperationReceived", "alice\nbob", "PUT /v1/var/a in default", "", ""},
		{"OperationComplete", "alice\nbob", "PUT /v1/var/a in default", "", "OK"},
		{"OperationReceived", "alice\nbob", "GET /v1/nodes in prod", "", ""},
		{"OperationComplete", "alice\nbob", "GET /v1/nodes in prod", "", "ForbiddenPermission denied"},
		{"OperationReceived", "unknown token", "GET /v1/jobs in default", "", ""},
		{"OperationComplete", "unknown token", "GET /v1/jobs in default", "", "ForbiddenPermission denied"},
		{"OperationReceived", "anonymous", "GET /v1/job/web in default", "", ""},
		{"OperationComplete", "anonymous", "GET /v1/job/web in default", "", "ForbiddenPermission denied"},
	}
	got := readAuditLog(t, path)
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d: %q", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("line %d: %q, want %q", i+1, got[i], want[i])
		}
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), token.SecretID) || strings.Contains(string(text), f.management) || strings.Contains(string(text), "hidden") {
		t.Errorf("the log has a secret: %v", err)
	}
}

// A request whose record cannot be written changes nothing.
func TestRequestIsRefusedWithoutItsRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Settings{Sinks: []audit.Sink{{Path: path, RotateBytes: 1}}}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(c *Config) { c.AuditLog = log })
	f.send("GET", "/v1/jobs", nil)
	if err := os.Remove(path); err != nil { // the rotation fails
		t.Fatal(err)
	}
	r := f.send("PUT", "/v1/namespace/x", strings.NewReader(`{"Name": "x"}`))
	if text := bodyText(r); r.StatusCode != 500 || text != audit.ErrNotWritten.Error() {
		t.Errorf("status %d: %s", r.StatusCode, text)
	}
	if f.store.Snapshot().Namespace(nil, "x") != nil {
		t.Error("the namespace was made")
	}
}
