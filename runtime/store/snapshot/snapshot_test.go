package snapshot_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/snapshot"
)

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{
		StateFilePath: filepath.Join(dir, snapshot.StateFile), KeyFile: filepath.Join(dir, snapshot.KeyFile), BuildVersion: "0.1.0", Logger: hclog.NewNullLogger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Each change in the test stores a namespace and a variable with the same number. A snapshot has all changes stored before it
// was requested, and both records of each such change.
func TestSnapshotDuringChanges(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	defer s.Close()
	var stored atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	writerDone := make(chan error, 1)
	go func() {
		for n := int64(1); ctx.Err() == nil; n++ {
			name := fmt.Sprintf("n%06d", n)
			_, err := s.Update(context.Background(), func(tx *store.Txn) error {
				tx.PutNamespace(&api.Namespace{Name: name})
				tx.PutVariable(&api.Variable{Namespace: "default", Path: name, Items: map[string]string{"number": name}})
				return nil
			})
			if err != nil {
				writerDone <- err
				return
			}
			stored.Store(n)
		}
		writerDone <- nil
	}()
	for round := range 8 {
		time.Sleep(5 * time.Millisecond)
		before := stored.Load()
		var archive bytes.Buffer
		meta, err := snapshot.Write(t.Context(), s, snapshot.Options{Version: "0.1.0", NodeID: "node", WorkDir: dir}, &archive)
		if err != nil {
			t.Fatal(err)
		}
		restored := t.TempDir()
		read, err := snapshot.Unpack(&archive, restored)
		if err != nil || read.Index != meta.Index || !read.HasKeys || read.NodeID != "node" {
			t.Fatalf("description %+v, written %+v, %v", read, meta, err)
		}
		copied := openStore(t, restored)
		namespaces, variables := 0, map[string]string{}
		for _, n := range copied.Snapshot().Namespaces(nil, "n") {
			if n.Name != "default" {
				namespaces++
				v := copied.Snapshot().Variable(nil, "default", n.Name)
				if v == nil || v.Items["number"] != n.Name {
					t.Errorf("round %d: namespace %s without its variable: %+v", round, n.Name, v)
				} else {
					variables[n.Name] = n.Name
				}
			}
		}
		if int64(namespaces) < before || len(variables) != namespaces {
			t.Errorf("round %d: %d namespaces and %d variables, %d changes were stored before", round, namespaces, len(variables), before)
		}
		if damage := copied.Damage(); len(damage) > 0 {
			t.Errorf("round %d: damage %v", round, damage)
		}
		copied.Close()
	}
	stop()
	if err := <-writerDone; err != nil {
		t.Error(err)
	}
	if stored.Load() == 0 {
		t.Error("no change was stored")
	}
}

func TestDamagedSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	defer s.Close()
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutNamespace(&api.Namespace{Name: "one"}); return nil }); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if _, err := snapshot.Write(t.Context(), s, snapshot.Options{Version: "0.1.0", WorkDir: dir}, &archive); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 { // the state file and the key file
		t.Errorf("copies remain: %v, %v", entries, err)
	}
	whole := archive.Bytes()
	unpack := func(archive []byte) (content string, err error) {
		dir := t.TempDir()
		if _, err := snapshot.Unpack(bytes.NewReader(archive), dir); err != nil {
			return "", err
		}
		for _, name := range []string{snapshot.StateFile, snapshot.KeyFile} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			content += string(text)
		}
		return content, nil
	}
	wholeContent, err := unpack(whole)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(whole); i += max(1, len(whole)/200) {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x55
		// A changed byte may have no meaning, as in the header, or the same one: in zeros, each distance repeats a zero.
		if content, err := unpack(damaged); err == nil && content != wholeContent {
			t.Errorf("byte %d of %d is changed, and nothing is wrong", i, len(whole))
		}
		if _, err := snapshot.Unpack(bytes.NewReader(whole[:i]), t.TempDir()); err == nil || !strings.Contains(err.Error(), "snapshot") {
			t.Errorf("only %d bytes of %d: %v", i, len(whole), err)
		}
	}
}

// FuzzUnpack changes the archive below the compression, because the compression's checksum would hide all changes.
func FuzzUnpack(f *testing.F) {
	var uncompressed bytes.Buffer
	archive := tar.NewWriter(&uncompressed)
	for _, name := range []string{"meta.json", snapshot.StateFile, snapshot.KeyFile, "SHA256SUMS"} {
		if err := archive.WriteHeader(&tar.Header{Name: name, Size: 3}); err != nil {
			f.Fatal(err)
		}
		if _, err := io.WriteString(archive, "{}\n"); err != nil {
			f.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(uncompressed.Bytes())
	f.Fuzz(func(t *testing.T, uncompressed []byte) {
		var packed bytes.Buffer
		zipped := gzip.NewWriter(&packed)
		if _, err := zipped.Write(uncompressed); err != nil {
			t.Fatal(err)
		}
		if err := zipped.Close(); err != nil {
			t.Fatal(err)
		}
		parent := t.TempDir()
		dir := filepath.Join(parent, "dir")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := snapshot.Unpack(bytes.NewReader(packed.Bytes()), dir)
		_, verifyErr := snapshot.Unpack(bytes.NewReader(packed.Bytes()), "")
		if (err == nil) != (verifyErr == nil) {
			t.Errorf("unpack: %v, verify: %v", err, verifyErr)
		}
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Errorf("files beside the directory: %v, %v", entries, err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err != nil || !info.Mode().IsRegular() || e.Name() != snapshot.StateFile && e.Name() != snapshot.KeyFile {
				t.Errorf("file %v, %v", e, err)
			}
		}
	})
}
