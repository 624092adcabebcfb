package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// install installs a file with this content.
func install(t *testing.T, dir, name, content string) *StagedInstallation {
	t.Helper()
	source := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(source, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := StageInstallation(dir, source, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Commit(); err != nil {
		t.Fatal(err)
	}
	return i
}

// openPlugin returns the error with which an agent starts a plugin, or nil.
func openPlugin(t *testing.T, dir, name string) error {
	t.Helper()
	c, err := New(Config{PluginDir: dir, Blocks: []PluginBlock{{Name: name}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Entries()[0].OpenAndCheck(t.Context(), hclog.NewNullLogger())
	if err == nil {
		b.Close()
	}
	return err
}

// An installed plugin starts only with the content that was installed.
func TestInstalledPluginStartsWithItsContent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "plugins")
	first := install(t, dir, "hello", "#!/bin/sh\n")
	install(t, dir, "other", "#!/bin/sh\n")
	if err := openPlugin(t, dir, "hello"); err != nil {
		t.Error(err)
	}
	path := filepath.Join(dir, "hello")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := openPlugin(t, dir, "hello"); err == nil || !strings.Contains(err.Error(), "it has changed since it was installed") || !strings.Contains(err.Error(), first.SHA256) {
		t.Errorf("a changed plugin: %v", err)
	}
	install(t, dir, "hello", "#!/bin/bash\n")
	if err := openPlugin(t, dir, "hello"); err != nil {
		t.Errorf("installed again: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "hello" && e.Name() != "other" && e.Name() != LockFileName {
			t.Errorf("the installation has left %s", e.Name())
		}
	}
}

// A running agent starts a plugin that was installed again, and refuses a file that was changed in another way.
func TestEntryStartsPluginThatWasInstalledLater(t *testing.T) {
	dir := t.TempDir()
	install(t, dir, "hello", "#!/bin/sh\n")
	c, err := New(Config{PluginDir: dir, Blocks: []PluginBlock{{Name: "hello"}}})
	if err != nil {
		t.Fatal(err)
	}
	open := func() error {
		b, err := c.Entries()[0].OpenAndCheck(t.Context(), hclog.NewNullLogger())
		if err == nil {
			b.Close()
		}
		return err
	}
	second := install(t, dir, "hello", "#!/bin/bash\n")
	if err := open(); err != nil {
		t.Errorf("installed again: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("#!/bin/false\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := open(); err == nil || !strings.Contains(err.Error(), second.SHA256) {
		t.Errorf("changed without an installation: %v", err)
	}
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"same", "changed", "missing"} {
		install(t, dir, name, name)
	}
	if err := os.Remove(filepath.Join(dir, "missing")); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"changed": 0o755, "copied": 0o755, "README": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	files, err := CompareFilesWithLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Name+": "+string(f.State))
	}
	if want := "changed: changed, copied: not installed, missing: missing, same: ok"; strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
}

// No plugin of a directory starts if its lock file cannot be trusted.
func TestInvalidLockFile(t *testing.T) {
	for name, c := range map[string]struct {
		write func(path string) error
		want  string
	}{
		"no JSON":            {func(path string) error { return os.WriteFile(path, []byte("{"), 0o644) }, "install the plugins again"},
		"writable by others": {func(path string) error { return os.Chmod(path, 0o666) }, "other users may write"},
		"a link":             {func(path string) error { return os.Symlink("/etc/passwd", path) }, ""},
		"a directory":        {func(path string) error { return os.Mkdir(path, 0o755) }, "not a regular file"},
		"more than is readable": {func(path string) error {
			return os.WriteFile(path, []byte(`{"Plugins":{"`+strings.Repeat("a", 2<<20)), 0o644)
		}, "install the plugins again"},
	} {
		dir := t.TempDir()
		install(t, dir, "hello", "#!/bin/sh\n")
		path := filepath.Join(dir, LockFileName)
		if name != "writable by others" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.write(path); err != nil {
			t.Fatal(err)
		}
		if err := openPlugin(t, dir, "hello"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestRefusedInstallations(t *testing.T) {
	source := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(source, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, source, name, want string }{
		{t.TempDir(), source, ".hidden", "choose one with -name"},
		{t.TempDir(), source, "../hello", "choose one with -name"},
		{t.TempDir(), filepath.Dir(source), "hello", "not a regular file"},
		{t.TempDir(), source + "x", "hello", "no such file"},
		{shared, source, "hello", "other users may write"},
	} {
		_, err := StageInstallation(c.dir, c.source, c.name)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
		if entries, _ := os.ReadDir(c.dir); len(entries) > 0 {
			t.Errorf("%+v: left %v", c, entries)
		}
	}
}
