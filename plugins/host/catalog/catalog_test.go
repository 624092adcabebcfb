package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
)

// makePluginDir creates a plugin directory with scripts of the given names.
func makePluginDir(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// formatEntries formats the entries: a builtin in brackets, a rejected plugin with a question
// mark.
func formatEntries(c *Catalog) []string {
	var out []string
	for _, e := range c.Entries() {
		s := e.Name
		if e.Builtin {
			s = "[" + s + "]"
		}
		if e.Err != nil {
			s += "?"
		}
		out = append(out, s)
	}
	return out
}

func TestStartableFiles(t *testing.T) {
	files := []string{"hello", "nomad-driver-podman", "other", "raw_exec", "tool.exe", ".hidden", "with space", "README.md"}
	builtins := []Builtin{{Name: "mock"}, {Name: "raw_exec"}}
	block := func(names ...string) (out []PluginBlock) {
		for _, n := range names {
			out = append(out, PluginBlock{Name: n})
		}
		return out
	}
	tests := []struct {
		name   string
		blocks []PluginBlock
		wanted []string
		noDir  bool
		want   []string
	}{
		{"an agent without blocks has the builtins", nil, nil, false, []string{"[mock]", "[raw_exec]"}},
		{"a block starts a file", block("hello"), nil, false, []string{"hello", "[mock]", "[raw_exec]"}},
		{"a block is matched with the whole file name", block("podman"), nil, false, []string{"[mock]", "podman?", "[raw_exec]"}},
		{".exe does not count", block("tool"), nil, false, []string{"[mock]", "[raw_exec]", "tool"}},
		{"a job starts the driver of its name", nil, []string{"hello"}, false, []string{"hello"}},
		{"a job starts the driver of its name with the prefix", nil, []string{"podman"}, false, []string{"nomad-driver-podman"}},
		{"a job starts nothing else", nil, []string{"mock"}, false, []string{"[mock]"}},
		{"a job does not choose a file over a builtin", nil, []string{"raw_exec"}, false, []string{"[raw_exec]"}},
		{"a block does", block("raw_exec"), []string{"raw_exec"}, false, []string{"[raw_exec]", "raw_exec"}},
		{"a job and a block", block("other"), []string{"hello"}, false, []string{"hello", "other"}},
		{"a job's driver is no path", nil, []string{"../other", "/bin/sh", "with space", ".hidden", ""}, false, []string{}},
		{"a block for a builtin", block("mock"), nil, false, []string{"[mock]", "[raw_exec]"}},
		{"a job does not start a builtin for its block", block("mock"), []string{"raw_exec"}, false, []string{"[raw_exec]"}},
		{"a block for nothing", block("docker"), nil, false, []string{"docker?", "[mock]", "[raw_exec]"}},
		{"a block without a directory", block("hello"), []string{"mock"}, true, []string{"hello?", "[mock]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Builtins: builtins, PluginDir: makePluginDir(t, files...), Blocks: tt.blocks, RequestedNames: tt.wanted}
			if tt.noDir {
				cfg.PluginDir = ""
			}
			c, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := formatEntries(c); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestInvalidPluginNames(t *testing.T) {
	for _, name := range []string{"", "..", "../x", "a/b", "/bin/sh", "-x", ".x", "a b", "a\x00", "ä", strings.Repeat("a", 129)} {
		if _, err := New(Config{Blocks: []PluginBlock{{Name: name, Range: hcl.Range{Filename: "agent.hcl", Start: hcl.Pos{Line: 3}}}}}); err == nil || !strings.Contains(err.Error(), "agent.hcl:3") {
			t.Errorf("block %q: %v", name, err)
		}
		if _, err := New(Config{Builtins: []Builtin{{Name: name}}}); err == nil {
			t.Errorf("builtin %q was taken", name)
		}
	}
	if _, err := New(Config{Builtins: []Builtin{{Name: "a"}, {Name: "a"}}}); err == nil {
		t.Error("two builtins of one name")
	}
}

func TestEntryFields(t *testing.T) {
	dir := makePluginDir(t, "nomad-driver-hello")
	c, err := New(Config{
		PluginDir: dir,
		Builtins:  []Builtin{{Name: "mock"}, {Name: "raw_exec", Args: []string{"x"}, Version: "2.0"}},
		Blocks: []PluginBlock{
			{Name: "nomad-driver-hello", Args: []string{"-v"}, Config: map[string]any{"a": 1}},
			{Name: "nomad-driver-hello", Config: map[string]any{"b": 2}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	mock, hello, raw := c.Entries()[0], c.Entries()[1], c.Entries()[2]
	if mock.Version != "0.1.0" || mock.ExpectedDriverName() != "mock" || mock.String() != `plugin "mock"` {
		t.Errorf("%+v", mock)
	}
	if raw.Version != "2.0" || !slices.Equal(raw.Args, []string{"x"}) {
		t.Errorf("%+v", raw)
	}
	path := filepath.Join(dir, "nomad-driver-hello")
	if hello.ExpectedDriverName() != "hello" || hello.String() != fmt.Sprintf(`plugin "nomad-driver-hello" (%s)`, path) {
		t.Errorf("%+v", hello)
	}
	// If two blocks have the same name, the fields of the later block override those of the
	// earlier one.
	if !slices.Equal(hello.Args, []string{"-v"}) || hello.Block.Config["b"] != 2 || hello.Block.Config["a"] != nil {
		t.Errorf("merged block %+v", hello.Block)
	}

	b, err := mock.OpenAndCheck(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got := strings.Join(b.Argv, " "); got != "nomad-lite plugin serve mock" || b.IsScript {
		t.Errorf("builtin: %s, script %v", got, b.IsScript)
	}
	self, _ := os.Stat("/proc/self/exe")
	if info, _ := b.File.Stat(); !os.SameFile(info, self) {
		t.Error("a builtin is not this program")
	}
	b, err = hello.OpenAndCheck(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got := strings.Join(b.Argv, " "); got != path+" -v" || !b.IsScript || b.Path != path {
		t.Errorf("external: %s, script %v", got, b.IsScript)
	}
	sum := sha256.Sum256([]byte("#!/bin/sh\n"))
	if got, err := b.SHA256(); err != nil || got != hex.EncodeToString(sum[:]) {
		t.Errorf("sha256 %s, %v", got, err)
	}
}

func TestBuiltinConfig(t *testing.T) {
	own := map[string]any{"enabled": true}
	for name, tt := range map[string]struct {
		blocks []PluginBlock
		want   string
	}{
		"no block":               {nil, "map[enabled:true]"},
		"a block without config": {[]PluginBlock{{Name: "raw_exec", Args: []string{"x"}}}, "map[enabled:true]"},
		"a block with config":    {[]PluginBlock{{Name: "raw_exec", Config: map[string]any{}}}, "map[]"},
	} {
		c, err := New(Config{Builtins: []Builtin{{Name: "raw_exec", ConfigWithoutBlock: own}}, Blocks: tt.blocks, PluginDir: makePluginDir(t, "raw_exec"), RequestedNames: []string{"raw_exec"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.Entries()[0].Block.Config); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		if n := len(c.Entries()); n != 1+len(tt.blocks) {
			t.Errorf("%s: %d entries, a file is there for its block only", name, n)
		}
	}
}

func TestBuiltinOptions(t *testing.T) {
	options := map[string]any{"a": 1, "b": 2}
	for name, tt := range map[string]struct {
		blocks []PluginBlock
		want   string
	}{
		"no block":               {nil, "map[a:1 b:2]"},
		"a block without config": {[]PluginBlock{{Name: "exec"}}, "map[a:1 b:2]"},
		"a block with config":    {[]PluginBlock{{Name: "exec", Config: map[string]any{"b": 3, "c": 4}}}, "map[a:1 b:3 c:4]"},
	} {
		c, err := New(Config{Builtins: []Builtin{{Name: "exec", OptionDefaults: options}}, Blocks: tt.blocks})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.Entries()[0].Block.Config); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	if got := fmt.Sprint(options); got != "map[a:1 b:2]" {
		t.Errorf("the options are now %s", got)
	}
}

func TestRelativeDirectory(t *testing.T) {
	dir := makePluginDir(t, "x")
	t.Chdir(dir)
	c, err := New(Config{PluginDir: ".", RequestedNames: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("/")
	b, err := c.Entries()[0].OpenAndCheck(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if want := filepath.Join(dir, "x"); b.Path != want || b.Argv[0] != want {
		t.Errorf("path %s, argv %v, want %s", b.Path, b.Argv, want)
	}
}

func TestElfIsExecutedByHandle(t *testing.T) {
	dir := makePluginDir(t)
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("\x7fELF and so on"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{PluginDir: dir, RequestedNames: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Entries()[0].OpenAndCheck(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.IsScript {
		t.Error("an ELF file is taken for a script")
	}
	// The handle still reads the checked file after the file at its path is replaced.
	if err := os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "y")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := b.File.ReadAt(got, 0); err != nil || string(got) != "\x7fELF" {
		t.Errorf("the handle reads %q, %v", got, err)
	}
}

// TestUnsafePluginIsRefused checks which plugin files are refused, and with which errors.
func TestUnsafePluginIsRefused(t *testing.T) {
	outside := makePluginDir(t, "evil")
	tests := []struct {
		name  string
		setup func(t *testing.T, dir, file string)
		want  string // text of the error; "" means that the plugin may be started
		root  bool   // the test needs root
	}{
		{"a sound file", func(*testing.T, string, string) {}, "", false},
		{"writable for all", func(t *testing.T, _, file string) { chmod(t, file, 0o757) }, "other users may write to the file (mode 0757)", false},
		{"writable for its group", func(t *testing.T, _, file string) { chmod(t, file, 0o775) }, "its group may write to the ", true},
		{"directory writable for all", func(t *testing.T, dir, _ string) { chmod(t, dir, 0o777) }, "other users may write to the plugin directory", false},
		{"directory with sticky bit", func(t *testing.T, dir, _ string) { chmod(t, dir, 0o777|fs.ModeSticky) }, "other users may write to the plugin directory", false},
		{"directory writable for its group", func(t *testing.T, dir, _ string) { chmod(t, dir, 0o775) }, "its group may write to the ", true},
		{"of another user", func(t *testing.T, _, file string) { chown(t, file) }, "belongs to uid 4242", true},
		{"directory of another user", func(t *testing.T, dir, _ string) { chown(t, dir) }, "belongs to uid 4242", true},
		{"in a directory of another user", func(t *testing.T, dir, _ string) { chown(t, filepath.Dir(dir)) }, "belongs to user 4242, who could change", true},
		{"in a directory writable for all", func(t *testing.T, dir, _ string) { chmod(t, filepath.Dir(dir), 0o777) }, "everybody may write to ", true},
		{"in a directory writable for a group", func(t *testing.T, dir, _ string) {
			if err := os.Chown(filepath.Dir(dir), 0, 4242); err != nil {
				t.Fatal(err)
			}
			chmod(t, filepath.Dir(dir), 0o775)
		}, "all of group 4242 may write to ", true},
		{"in a directory like /tmp", func(t *testing.T, dir, _ string) { chmod(t, filepath.Dir(dir), 0o777|fs.ModeSticky) }, "", false},
		{"a link through a directory writable for all", func(t *testing.T, dir, file string) {
			if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "target"), filepath.Join(dir, "sub", "x")); err != nil {
				t.Fatal(err)
			}
			symlink(t, "sub/x", file)
			chmod(t, filepath.Join(dir, "sub"), 0o777)
		}, "everybody may write to ", false},
		{"not executable", func(t *testing.T, _, file string) { chmod(t, file, 0o644) }, "not executable (mode 0644)", false},
		{"a link out of the directory", func(t *testing.T, _, file string) { symlink(t, filepath.Join(outside, "evil"), file) }, "leads out of the plugin directory, to " + outside, false},
		{"a relative link out of the directory", func(t *testing.T, dir, file string) {
			rel, _ := filepath.Rel(dir, filepath.Join(outside, "evil"))
			symlink(t, rel, file)
		}, "leads out of the plugin directory", false},
		{"a link inside the directory", func(t *testing.T, _, file string) { symlink(t, "target", file) }, "", false},
		{"a link to nothing", func(t *testing.T, _, file string) { symlink(t, "nothing", file) }, "leads to nothing, which does not exist", false},
		{"a FIFO", func(t *testing.T, _, file string) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(file, 0o755); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			dir := makePluginDir(t, "x", "target")
			tt.setup(t, dir, filepath.Join(dir, "x"))
			err := openRequestedPlugin(t, dir)
			checkRefusal(t, err, tt.want)

			// The same change is also detected when it is made after the scan of the
			// directory, before the launch.
			dir = makePluginDir(t, "x", "target")
			c, newErr := New(Config{PluginDir: dir, RequestedNames: []string{"x"}})
			if newErr != nil {
				t.Fatal(newErr)
			}
			tt.setup(t, dir, filepath.Join(dir, "x"))
			if tt.name == "not executable" {
				return // Open does not check the mode for execution: execve(2) fails
			}
			b, err := c.Entries()[0].OpenAndCheck(t.Context(), nil)
			if err == nil {
				b.Close()
			}
			checkRefusal(t, err, tt.want)
		})
	}
}

func openRequestedPlugin(t *testing.T, dir string) error {
	t.Helper()
	c, err := New(Config{PluginDir: dir, RequestedNames: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Entries(); len(got) != 1 {
		t.Fatalf("entries %v", got)
	}
	b, err := c.Entries()[0].OpenAndCheck(t.Context(), nil)
	if err == nil {
		b.Close()
	}
	return err
}

func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Error("accepted")
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with %q, want %q", err, want)
	}
}

func TestCheckOwnerAndMode(t *testing.T) {
	tests := []struct {
		mode        fs.FileMode
		owner, self int
		want        string
	}{
		{0o755, 0, 0, ""},
		{0o755, 0, 1000, ""},
		{0o755, 1000, 1000, ""},
		{0o755, 1000, 0, "belongs to uid 1000"},
		{0o755, 1001, 1000, "belongs to uid 1001"},
		{0o775, 1000, 1000, "warn"},
		{0o775, 0, 0, "its group may write"},
		{0o757, 1000, 1000, "other users may write"},
	}
	for _, tt := range tests {
		var out strings.Builder
		err := checkOwnerAndMode("the file", tt.mode, tt.owner, tt.self, hclog.New(&hclog.LoggerOptions{Output: &out}))
		if warned := out.Len() > 0; warned != (tt.want == "warn") {
			t.Errorf("%o by %d for %d: warned %v", tt.mode, tt.owner, tt.self, warned)
		}
		if tt.want != "warn" {
			checkRefusal(t, err, tt.want)
		}
	}
}

func TestPinnedChecksum(t *testing.T) {
	dir := makePluginDir(t, "x")
	sum := sha256.Sum256([]byte("#!/bin/sh\n"))
	for pin, want := range map[string]string{
		strings.ToUpper(hex.EncodeToString(sum[:])): "",
		strings.Repeat("0", 64):                     "agent.hcl:7,1-2 wants 000",
	} {
		c, err := New(Config{PluginDir: dir, Blocks: []PluginBlock{{Name: "x", SHA256: pin, Range: hcl.Range{Filename: "agent.hcl", Start: hcl.Pos{Line: 7, Column: 1}, End: hcl.Pos{Line: 7, Column: 2}}}}})
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.Entries()[0].OpenAndCheck(t.Context(), nil)
		if err == nil {
			b.Close()
		}
		checkRefusal(t, err, want)
	}
}

func TestMissingPluginDirectory(t *testing.T) {
	var out strings.Builder
	logger := hclog.New(&hclog.LoggerOptions{Output: &out})
	c, err := New(Config{PluginDir: filepath.Join(t.TempDir(), "none"), Builtins: []Builtin{{Name: "mock"}}, Logger: logger})
	if err != nil || len(c.Entries()) != 1 {
		t.Errorf("%v, %v", c, err)
	}
	if !strings.Contains(out.String(), "does not exist, no external plugins") {
		t.Errorf("log: %s", out.String())
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func chown(t *testing.T, path string) {
	t.Helper()
	if err := os.Chown(path, 4242, -1); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
}

// TestProgramID checks that the ProgramID of a plugin changes with its file, its arguments
// and its configuration, and is the same after another scan.
func TestProgramID(t *testing.T) {
	dir := makePluginDir(t, "mine")
	path := filepath.Join(dir, "mine")
	program := func(b PluginBlock) ProgramID {
		t.Helper()
		b.Name = "mine"
		c, err := New(Config{PluginDir: dir, Blocks: []PluginBlock{b}})
		if err != nil {
			t.Fatal(err)
		}
		return c.Entries()[0].ProgramID
	}
	first := program(PluginBlock{})
	if first == (ProgramID{}) || program(PluginBlock{SHA256: "0"}) != first {
		t.Errorf("the same program is %v and %v", first, program(PluginBlock{SHA256: "0"}))
	}
	seen := map[ProgramID]string{first: "the first"}
	differs := func(what string, id ProgramID) {
		t.Helper()
		if other, twice := seen[id]; twice {
			t.Errorf("%s is the program that %s is", what, other)
		}
		seen[id] = what
	}
	differs("one with arguments", program(PluginBlock{Args: []string{"-x"}}))
	differs("one with a configuration", program(PluginBlock{Config: map[string]any{"a": 1}}))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// Repeat until the ctime changes: file systems have coarse timestamps.
	for deadline := time.Now().Add(time.Minute); ; {
		if err := os.WriteFile(path, []byte("#!/bin/SH\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		if program(PluginBlock{}) != first || time.Now().After(deadline) {
			break
		}
	}
	differs("a file of the same size and time", program(PluginBlock{}))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if id := program(PluginBlock{}); id != (ProgramID{}) {
		t.Errorf("without a file it is %v", id)
	}
}

// A builtin that is not started has no entry, and its reason is kept.
func TestBuiltinThatIsNotStarted(t *testing.T) {
	c, err := New(Config{Builtins: []Builtin{{Name: "docker", NotStartedReason: "no engine"}, {Name: "exec"}}})
	if err != nil {
		t.Fatal(err)
	}
	if entries := c.Entries(); len(entries) != 1 || entries[0].Name != "exec" {
		t.Errorf("entries %v", entries)
	}
	if got := c.NotStartedReasonByDriver(); len(got) != 1 || got["docker"] != "no engine" {
		t.Errorf("not started: %v", got)
	}
}
