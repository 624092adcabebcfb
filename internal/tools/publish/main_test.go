package main

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPublishedModuleHasTheFilesOfTheWorkTree(t *testing.T) {
	root, proxyDir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"go.mod":             "module example.com/Published\n\ngo 1.26\n",
		"published.go":       "package published\n",
		".gitignore":         "/bin/\n",
		"bin/ignored":        "",
		"nested/go.mod":      "module example.com/nested\n",
		"nested/nested.go":   "package nested\n",
		"removed/removed.go": "package removed\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "removed"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "removed")); err != nil {
		t.Fatal(err)
	}
	if err := publish(root, "v0.1.0", proxyDir); err != nil {
		t.Fatal(err)
	}
	archive, err := zip.OpenReader(filepath.Join(proxyDir, "example.com/!published/@v/v0.1.0.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	var names []string
	for _, file := range archive.File {
		names = append(names, strings.TrimPrefix(file.Name, "example.com/Published@v0.1.0/"))
	}
	slices.Sort(names)
	if want := []string{".gitignore", "go.mod", "published.go"}; !slices.Equal(names, want) {
		t.Errorf("the archive has %q, want %q", names, want)
	}

	if err := publish(root, "0.1.0", proxyDir); err == nil || !strings.Contains(err.Error(), "0.1.0") {
		t.Errorf("a version without the prefix v: %v, want an error", err)
	}
}
