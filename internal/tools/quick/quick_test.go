package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	packages := []goPackage{
		{ImportPath: "m/store", Dir: "store"},
		{ImportPath: "m/store/codec", Dir: "store/codec"},
		{ImportPath: "m/agent", Dir: "agent", Imports: []string{"m/store"}},
		{ImportPath: "m/cli", Dir: "cli", Imports: []string{"m/agent"}},
		{ImportPath: "m/fake", Dir: "fake", TestImports: []string{"m/store"}},
		{ImportPath: "m/client", Dir: "client", XTestImports: []string{"m/store"}},
		{ImportPath: "m/old", Dir: "old", Imports: []string{"m/deleted"}},
		{ImportPath: "m/cmd/nomad-lite/systemtest/ui", Dir: "cmd/nomad-lite/systemtest/ui", TestImports: []string{"m/store"}},
		{ImportPath: "m/cmd/nomad-lite/peertest", Dir: "cmd/nomad-lite/peertest", TestImports: []string{"m/agent"}},
	}
	for name, c := range map[string]struct {
		files, deleted []string
		want           plan
	}{
		"importers by Imports, TestImports and XTestImports are tested, and their importers are not": {
			files: []string{"store/store.go"},
			want: plan{
				changed: []string{"m/store"}, importers: []string{"m/agent", "m/fake", "m/client"},
				vetOnly: []string{"m/cmd/nomad-lite/systemtest/ui"}, goFiles: []string{"store/store.go"},
			},
		},
		"a changed importer is listed once": {
			files: []string{"agent/agent.go", "store/store.go"},
			want: plan{
				changed: []string{"m/store", "m/agent"}, importers: []string{"m/cli", "m/fake", "m/client"},
				vetOnly: []string{"m/cmd/nomad-lite/systemtest/ui", "m/cmd/nomad-lite/peertest"}, goFiles: []string{"agent/agent.go", "store/store.go"},
			},
		},
		"testdata, Go files in it and embedded files belong to the package above": {
			files: []string{"cli/testdata/a/want.txt", "cli/testdata/a/main.go", "store/codec/static/x.css"},
			want:  plan{changed: []string{"m/store/codec", "m/cli"}, goFiles: []string{"cli/testdata/a/main.go"}},
		},
		"a deleted file changes its package": {
			files: []string{"cli/gone.go"}, deleted: []string{"cli/gone.go"},
			want: plan{changed: []string{"m/cli"}},
		},
		"the importers of a removed package are tested": {
			files: []string{"deleted/a.go", "deleted/b.go"}, deleted: []string{"deleted/a.go", "deleted/b.go"},
			want: plan{removed: []string{"m/deleted"}, importers: []string{"m/old"}},
		},
		"system tests that changed are tested": {
			files: []string{"cmd/nomad-lite/systemtest/ui/testdata/page.html"},
			want:  plan{changed: []string{"m/cmd/nomad-lite/systemtest/ui"}},
		},
		"go.mod concerns all packages": {
			files: []string{"cli/cli.go", "go.mod"},
			want: plan{
				all: true, changed: []string{"m/cli"}, goFiles: []string{"cli/cli.go"},
				importers: []string{"m/store", "m/store/codec", "m/agent", "m/fake", "m/client", "m/old"},
				vetOnly:   []string{"m/cmd/nomad-lite/systemtest/ui", "m/cmd/nomad-lite/peertest"},
			},
		},
		"files of a nested module, its go.mod included, are tested there": {
			files: []string{"internal/tools/go.mod", "internal/tools/quick/main.go"},
			want:  plan{modules: []string{"internal/tools"}, goFiles: []string{"internal/tools/quick/main.go"}},
		},
		"a document belongs to no package, and links are checked": {
			files: []string{"docs/reference/cli.md", "README.md"},
			want:  plan{documents: true, noPackage: []string{"docs/reference/cli.md", "README.md"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			exists := func(file string) bool { return !slices.Contains(c.deleted, file) }
			if got := newPlan("m", packages, []string{"internal/tools"}, c.files, exists); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestRun changes a module in a repository, and checks which tests run.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git := func(args ...string) {
		t.Helper()
		args = append([]string{"-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	quick := func() (string, error) {
		var stdout bytes.Buffer
		err := run(t.Context(), "main", &stdout)
		return stdout.String(), err
	}
	wantLines := func(out string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains(out, line) {
				t.Errorf("no %q in\n%s", line, out)
			}
		}
	}

	git("init", "-q", "-b", "main")
	write("go.mod", "module example.org/m\n\ngo 1.26.0\n")
	write("store/store.go", "package store\n\nfunc Open() int { return 1 }\n")
	write("agent/agent.go", "package agent\n\nimport \"example.org/m/store\"\n\nfunc Run() int { return store.Open() }\n")
	write("agent/agent_test.go", "package agent\n\nimport \"testing\"\n\nfunc TestRun(t *testing.T) {\n\tif Run() != 1 {\n\t\tt.Error(\"store is not open\")\n\t}\n}\n")
	write("cli/cli.go", "package cli\n\nimport _ \"example.org/m/agent\"\n")
	git("add", "-A")
	git("commit", "-q", "-m", "first")

	if out, err := quick(); err != nil || !strings.HasPrefix(out, "Nothing changed") {
		t.Errorf("without a change: %v\n%s", err, out)
	}

	git("checkout", "-q", "-b", "work")
	write("store/store.go", "package store\n\nfunc Open() int { return 2 }\n")
	git("commit", "-q", "-a", "-m", "second")
	out, err := quick()
	if err == nil || !strings.Contains(err.Error(), "go test") {
		t.Errorf("the test of an importer fails, and quick returns %v\n%s", err, out)
	}
	wantLines(out, "Changed packages:\n  example.org/m/store\nPackages that import them:\n  example.org/m/agent\n", "store is not open")
	if strings.Contains(out, "m/cli") {
		t.Errorf("an indirect importer is tested\n%s", out)
	}

	write("store/store.go", "package store\nfunc Open() int { return 1 }\n")
	write("new/new.go", "package new\n\nfunc init() {println()\n}\n")
	out, err = quick()
	if err == nil || !strings.Contains(err.Error(), "not formatted") || !strings.Contains(err.Error(), "new/new.go store/store.go") {
		t.Errorf("two files are not formatted, and quick returns %v", err)
	}
	wantLines(out, "ok  \texample.org/m/agent", "  example.org/m/new\n")

	if err := os.RemoveAll("new"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll("store"); err != nil {
		t.Fatal(err)
	}
	out, err = quick()
	if err == nil {
		t.Error("an import of a removed package passes")
	}
	wantLines(out, "Removed packages:\n  example.org/m/store\nPackages that import them:\n  example.org/m/agent\n")

	if err := run(t.Context(), "no-such-branch", &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "BASE=") {
		t.Errorf("an unknown base gives %v", err)
	}
}
