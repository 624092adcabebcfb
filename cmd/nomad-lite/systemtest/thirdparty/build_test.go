package thirdparty

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

const ownModule = "github.com/nomad-lite/nomad-lite"

// maxRequiredModules is the limit for the modules in the go.mod of a plugin with unit tests and contract tests.
const maxRequiredModules = 20

// maxDriverSize is the limit for what the SDK adds to the size of the smallest driver, in bytes.
const maxDriverSize = 2_000_000

// linkableFolders are the folders of the module that a plugin can link. A driver gives descriptors and records of its
// tasks to the keeper, which it finds through helperdir.
var linkableFolders = []string{
	"hclspec", "plugins/base", "plugins/driver", "plugins/device", "plugins/hook", "plugins/proto", "plugins/host/keeper", "plugins/host/helperdir", "sdk", "internal",
}

func TestPluginsBuildAgainstThePublishedModule(t *testing.T) {
	slowtest.SkipLong(t, "builds plugins outside of the repository")
	environ := systemtest.PublishModule(t)
	for _, kind := range []string{"driver", "hook", "device"} {
		t.Run(kind, func(t *testing.T) {
			dir := newPlugin(t, kind, environ)
			goMod := readFile(t, filepath.Join(dir, "go.mod"))
			if !strings.Contains(goMod, "\nrequire "+ownModule+" "+systemtest.PublishedVersion+"\n") || strings.Contains(goMod, "replace") {
				t.Errorf("go.mod does not require the published module alone:\n%s", goMod)
			}
			required := strings.Fields(run(t, dir, environ, "go", "mod", "edit", "-json"))
			if n := countFields(required, `"Path":`) - 1; n < 1 || n > maxRequiredModules { // one path is that of the plugin's module
				t.Errorf("go.mod names %d modules, want 1 to %d:\n%s", n, maxRequiredModules, goMod)
			}
			countModulesWithTests(t, dir, environ)
			run(t, dir, environ, "go", "mod", "tidy", "-diff")
			if out := run(t, dir, environ, "gofmt", "-d", "."); out != "" {
				t.Errorf("gofmt changes the plugin:\n%s", out)
			}
			run(t, dir, environ, "go", "vet", "./...")
			run(t, dir, environ, "go", "test", "./...")
			run(t, dir, environ, "go", "build")
			for _, pkg := range listLinked(t, dir, environ, "{{.ImportPath}}") {
				if folder, ours := strings.CutPrefix(pkg, ownModule+"/"); ours && !slices.ContainsFunc(linkableFolders, func(f string) bool {
					return folder == f || strings.HasPrefix(folder, f+"/")
				}) {
					t.Errorf("the plugin links %s, which is not for plugins", pkg)
				}
			}
			golden.Check(t, filepath.Join("testdata", kind+".modules"), strings.Join(listLinked(t, dir, environ, "{{with .Module}}{{.Path}}{{end}}"), "\n")+"\n")
			if kind == "device" {
				runUnitTestsOfREADME(t, dir, environ)
			}
		})
	}
	t.Run("size", func(t *testing.T) {
		smallest, onlyGoPlugin, template := buildMeasuredPrograms(t, environ)
		t.Logf("stripped, in bytes: smallest driver %d, driver of `plugin new` %d, go-plugin only %d", fileSize(t, smallest), fileSize(t, template), fileSize(t, onlyGoPlugin))
		if added := fileSize(t, smallest) - fileSize(t, onlyGoPlugin); added > maxDriverSize {
			t.Errorf("the smallest driver is %d bytes larger than a program that only serves go-plugin, want at most %d", added, maxDriverSize)
		}
	})
}

// runUnitTestsOfREADME runs the Go code of the README.md of a new plugin, which is main_test.go.
func runUnitTestsOfREADME(t *testing.T, dir string, environ []string) {
	t.Helper()
	_, code, found := strings.Cut(readFile(t, filepath.Join(dir, "README.md")), "```go\n")
	code, _, closed := strings.Cut(code, "```\n")
	if !found || !closed {
		t.Fatal("README.md has no Go code")
	}
	if err := os.WriteFile(filepath.Join(dir, "main_test.go"), []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, dir, environ, "go", "mod", "tidy")
	run(t, dir, environ, "go", "test", "-short")
}

// contractTest is the Go test that docs/reference/drivers.md, docs/reference/hooks.md and docs/reference/devices.md describe.
const contractTest = `package main

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestContract(t *testing.T) { t.Skip(sdktest.Plugin{}.Path) }

var _ = []func(*testing.T, sdktest.Plugin){sdktest.Driver, sdktest.Hook, sdktest.Device}
`

// countModulesWithTests adds a contract test to a copy of the plugin, and checks the number of modules in its go.mod.
func countModulesWithTests(t *testing.T, dir string, environ []string) {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "plugin")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "contract_test.go"), []byte(contractTest), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, copied, environ, "go", "mod", "tidy")
	required := strings.Fields(run(t, copied, environ, "go", "mod", "edit", "-json"))
	if n := countFields(required, `"Path":`) - 1; n > maxRequiredModules {
		t.Errorf("with a contract test go.mod names %d modules, want at most %d:\n%s", n, maxRequiredModules, readFile(t, filepath.Join(copied, "go.mod")))
	}
}

// buildMeasuredPrograms builds, stripped, the smallest driver of the examples, a program that only serves go-plugin,
// and the driver of `plugin new`, with the dependencies of the last.
func buildMeasuredPrograms(t testing.TB, environ []string) (smallest, onlyGoPlugin, template string) {
	t.Helper()
	dir := newPlugin(t, "driver", environ)
	for name, source := range map[string]string{
		"smallest":     filepath.Join(systemtest.RepositoryDir(), "sdk/examples/sleeper/main.go"),
		"onlygoplugin": "testdata/onlygoplugin/main.go",
	} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "main.go"), []byte(readFile(t, source)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin") + "/"
	run(t, dir, environ, "go", "build", "-ldflags=-s -w", "-o", bin, "./...")
	return bin + "smallest", bin + "onlygoplugin", bin + filepath.Base(dir)
}

// newPlugin makes the source code of a plugin outside of the repository, and returns its directory.
func newPlugin(t testing.TB, kind string, environ []string) string {
	t.Helper()
	dir := t.TempDir()
	if strings.HasPrefix(dir, systemtest.RepositoryDir()+"/") {
		t.Fatalf("TMPDIR is within the repository: %s", dir)
	}
	out := run(t, dir, environ, "nomad-lite", "plugin", "new", kind, "first")
	if strings.Contains(out, "does not build") {
		t.Fatal(out)
	}
	return filepath.Join(dir, "first")
}

// listLinked returns the sorted lines that `go list -deps` prints for the plugin with a format, each once.
func listLinked(t *testing.T, dir string, environ []string, format string) []string {
	t.Helper()
	lines := strings.Fields(run(t, dir, environ, "go", "list", "-deps", "-f", format, "."))
	slices.Sort(lines)
	return slices.Compact(lines)
}

// run runs a program in a directory, and returns its output.
func run(t testing.TB, dir string, environ []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func countFields(fields []string, field string) (n int) {
	for _, f := range fields {
		if f == field {
			n++
		}
	}
	return n
}
