package alloccopy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

func newAlloc() *api.Allocation {
	task := &api.Task{Name: "web", Driver: "raw_exec", Config: map[string]any{"count": 7, "ratio": 0.5, "args": []any{"-c", 1}, "map": map[string]any{"n": 2}}}
	job := &api.Job{ID: new("web"), TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{task}}}, Version: new(uint64(4)), CreateIndex: new(uint64(9))}
	model.Canonicalize(job)
	return &api.Allocation{
		ID: "a1", Namespace: "default", JobID: "web", TaskGroup: "g", Job: job, Name: "web.g[0]", CreateTime: 12,
		AllocatedResources: &api.AllocatedResources{Shared: api.AllocatedSharedResources{Ports: []api.PortMapping{{Label: "http", Value: 21000, To: 80}}}},
	}
}

func TestCopyEqualsAlloc(t *testing.T) {
	root := t.TempDir()
	dir, err := allocdir.New(root, "a1")
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, newAlloc()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if _, err := Read(dir, "a1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if err := dir.Build(); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, "a1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a copy: %v", err)
	}
	written := newAlloc()
	written.TaskStates = map[string]*api.TaskState{"web": {State: "running"}}
	for range 2 {
		if err := Write(dir, written); err != nil {
			t.Fatal(err)
		}
	}
	if written.TaskStates == nil {
		t.Error("Write has changed the allocation")
	}
	got, err := Read(dir, "a1")
	if want := newAlloc(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, want)
	}
	path := filepath.Join(root, "a1", FileName)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range content {
		damaged := append([]byte(nil), content...)
		damaged[at] ^= 1
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(dir, "a1"); err == nil {
			t.Fatalf("byte %d of %d inverted: %+v", at, len(content), got)
		}
	}
	if err := os.WriteFile(path, content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir, "a1"); err == nil || !strings.Contains(err.Error(), "decode copy of allocation a1") {
		t.Errorf("half of the copy: %v", err)
	}
}

func TestCopyIsWrittenForEachAssignment(t *testing.T) {
	dir, err := allocdir.New(t.TempDir(), "a1")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Build(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir.Path(), FileName)
	written := newAlloc()
	checkWritten := func(when string, want bool) {
		t.Helper()
		before, _ := os.Stat(path) // there is none before the first call
		if err := Write(dir, written); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Stat(path); err != nil || os.SameFile(before, after) == want {
			t.Errorf("%s: the file was replaced: %v, want %v (%v)", when, !want, want, err)
		}
		if got, err := Read(dir, "a1"); err != nil || got.AllocModifyIndex != written.AllocModifyIndex {
			t.Errorf("%s: read %+v, %v", when, got, err)
		}
	}
	checkWritten("without a copy", true)
	checkWritten("without an index", true)
	written.AllocModifyIndex = 7
	checkWritten("after the copy of a build that stored no index", true)
	written.ClientStatus = "running"
	checkWritten("after a report", false)
	written.AllocModifyIndex = 8
	checkWritten("after an update", true)
	written.AllocModifyIndex = 7
	checkWritten("after an older state was restored", true)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)-1] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	checkWritten("after a damage", true)
}
