//go:build linux

package replacefile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFullDiskKeepsFormerContent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a small tmpfs: needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, write := range map[string]func(name string, content []byte) error{
		"Write":       func(name string, content []byte) error { return Write(filepath.Join(dir, name), content, 0o600) },
		"WriteInRoot": func(name string, content []byte) error { return WriteInRoot(root, name, content, 0o600) },
	} {
		for _, content := range []string{"first", "former"} {
			if err := write(name, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(name, make([]byte, 1<<20)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v, want no space", name, err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != "former" {
			t.Errorf("%s: content of %d bytes, %v", name, len(got), err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files %v, %v", entries, err)
	}
}

func TestRemoveLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{temporaryPrefix + "123", "kept"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveLeftovers(dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != "kept" {
		t.Errorf("left %v, %v, want the other file", entries, err)
	}
}
