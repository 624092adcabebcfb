package httpapi

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskfiles"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// filesNode is a node with the directories of allocations.
type filesNode struct {
	stubNode
	dir    string
	opener *taskfiles.AllocDirOpener
	meta   map[string]*string
}

func newFilesNode(t *testing.T) *filesNode {
	return &filesNode{dir: t.TempDir(), opener: new(taskfiles.AllocDirOpener), meta: map[string]*string{}}
}

func (n *filesNode) OpenAllocFiles(id string) (*taskfiles.AllocDir, error) {
	return n.opener.OpenAllocDir(n.dir, id)
}

func (n *filesNode) SetMeta(_ context.Context, changes map[string]*string) error {
	for key, value := range changes {
		n.meta[key] = value
	}
	return nil
}

func (n *filesNode) Meta() api.NodeMetaResponse {
	return api.NodeMetaResponse{Meta: map[string]string{}, Dynamic: n.meta, Static: map[string]string{}}
}

// write writes a file of an allocation.
func (n *filesNode) write(t *testing.T, allocID, path, content string) {
	t.Helper()
	path = filepath.Join(n.dir, allocID, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// putAllocation stores an allocation of a job with a task "web" that has not started.
func (f *fixture) putAllocation(t *testing.T) *api.Allocation {
	t.Helper()
	alloc := &api.Allocation{
		ID: uuid.NewString(), Namespace: "default", JobID: "web", TaskGroup: "g", TaskStates: map[string]*api.TaskState{},
		Job: &api.Job{ID: new("web"), Name: new("web"), Namespace: new("default"), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "web"}}}}},
	}
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error { tx.PutScheduledAllocation(alloc); return nil }); err != nil {
		t.Fatal(err)
	}
	return alloc
}

func TestStreamOfFileIsLimited(t *testing.T) {
	n := newFilesNode(t)
	f := newFixture(t, func(c *Config) { setNode(c, n) })
	alloc := f.putAllocation(t)
	n.write(t, alloc.ID, "web/local/x", "0123456789")
	for _, c := range []struct{ query, want string }{
		{"&follow=false&plain=true", "0123456789"},
		{"&follow=false&plain=true&limit=4", "0123"},
		{"&follow=true&plain=true&limit=4&offset=3", "3456"}, // ends although it follows
		{"&follow=false&plain=true&limit=4&offset=2&origin=end", "89"},
		{"&follow=true&limit=4", `{"Data":"MDEyMw==","File":"web/local/x","Offset":4}`},
		{"&limit=x", `error parsing limit: strconv.ParseInt: parsing "x": invalid syntax`},
		{"&plain=x", `Failed to parse value of "plain" (x) as a bool: strconv.ParseBool: parsing "x": invalid syntax`},
	} {
		if got := bodyText(f.send("GET", "/v1/client/fs/stream/"+alloc.ID+"?path=web/local/x"+c.query, nil)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.query, got, c.want)
		}
	}
}

func TestMetadataKeysAreDottedIdentifiers(t *testing.T) {
	f := newFixture(t, func(c *Config) { setNode(c, newFilesNode(t)) })
	for key, valid := range map[string]bool{
		"a.b": true, "a-b": true, "a_b": true, "é": true,
		"": false, "a b": false, "a/b": false, "1a": false, "a..b": false, ".a": false, "a:b": false, "a[0]": false,
	} {
		r := f.send("POST", "/v1/client/metadata", strings.NewReader(`{"Meta":{"`+key+`":"x"}}`))
		code, want := 200, ""
		if !valid {
			code, want = 400, `"`+key+`" is invalid; metadata keys must be valid dotted hcl identifiers`
		}
		if got := bodyText(r); r.StatusCode != code || !valid && got != want {
			t.Errorf("%q: got %d %s, want %d %s", key, r.StatusCode, got, code, want)
		}
	}
}
