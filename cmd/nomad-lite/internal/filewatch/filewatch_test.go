package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The clock is fake, because the watcher reads the files in intervals.
func TestWatcher(t *testing.T) { synctest.Test(t, testWatcher) }

func testWatcher(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("job", "1")
	write("tree/sub/file", "1")
	write("tree/.git/index", "1")
	write("other", "1")
	write("target", "1")
	if err := os.Symlink("target", at("link")); err != nil {
		t.Fatal(err)
	}
	paths := []string{at("job"), at("tree"), at("missing"), at("link")}
	w := New(paths, func(path string) bool { return filepath.Ext(path) == ".out" })
	for _, step := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"a file of another size", func() { write("job", "12") }, []string{"job"}},
		{"a file of the same size", func() {
			if err := os.Chtimes(at("job"), time.Time{}, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		}, []string{"job"}},
		{"a file that is replaced", func() {
			write("new", "123")
			if err := os.Rename(at("new"), at("job")); err != nil {
				t.Fatal(err)
			}
		}, []string{"job"}},
		{"a file below a directory", func() { write("tree/sub/file", "12") }, []string{"tree"}},
		{"a file that is created", func() { write("missing", "1") }, []string{"missing"}},
		{"a file that is removed, and one in a directory", func() {
			write("tree/new", "1")
			if err := os.Remove(at("missing")); err != nil {
				t.Fatal(err)
			}
		}, []string{"missing", "tree"}},
		{"the target of a link", func() { write("target", "12") }, []string{"link"}},
		{"after files that are not watched", func() {
			write("other", "12")
			write("tree/.git/index", "12")
			write("tree/sub/built.out", "1")
			write("job", "1234")
		}, []string{"job"}},
	} {
		step.change()
		var want []string
		for _, name := range step.want {
			want = append(want, at(name))
		}
		if got := w.WaitForSettledChange(t.Context(), paths); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", step.name, got, want)
		}
	}
	paths = append(paths, at("other"))
	w.startWatching(paths)
	write("other", "123")
	if got := w.WaitForSettledChange(t.Context(), paths); !slices.Equal(got, paths[len(paths)-1:]) {
		t.Errorf("a path that was added: got %q", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := w.WaitForSettledChange(ended, paths); got != nil {
		t.Errorf("after the end of the context: got %q", got)
	}
}
