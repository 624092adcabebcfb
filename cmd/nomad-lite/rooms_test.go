package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const modulePathPrefix = "github.com/nomad-lite/nomad-lite/"

// allowedFolderImports maps each folder to the other folders whose packages its packages can
// import.
var allowedFolderImports = map[string][]string{
	"internal":       {},
	"hclspec":        {"internal"},
	"plugins":        {"internal", "hclspec"},
	"sdk":            {"internal", "hclspec", "plugins"},
	"builtin":        {"internal", "hclspec", "sdk"},
	"runtime":        {"internal", "hclspec", "plugins"},
	"cmd/nomad-lite": {"internal", "hclspec", "plugins", "sdk", "builtin", "runtime"},
}

// generatedPackages maps each package of generated code to the folders that can import it, which
// own the wire format.
var generatedPackages = map[string][]string{
	"plugins/proto":  {"plugins"},
	"hclspec/specpb": {"hclspec", "plugins"},
}

// leafPackages maps packages to further folders that can import them, because builtin plugins and
// the runtime share their rules. A leaf package imports no package of this module, except packages
// below its own and other leaf packages.
var leafPackages = map[string][]string{
	"plugins/confine":  {"builtin"},
	"plugins/idrange":  {"builtin"},
	"plugins/lookpath": {"builtin"},
	"plugins/netfiles": {"builtin"},
	"plugins/process":  {"builtin"},
	"plugins/safepath": {"builtin"},
	"plugins/taskuser": {"builtin"},

	"plugins/process/processtest": {"builtin"}, // for tests
}

// pluginContractPackages are the packages that all authors of plugins import. Builtins must not
// import packages that other plugins cannot import.
var pluginContractPackages = map[string][]string{
	"plugins/driver": {"builtin"},
	"plugins/hook":   {"builtin"},
}

// runtimeLayers is the order of the packages inside runtime. A package, with the packages below
// it, can import packages of its own layer and of the layers before it.
var runtimeLayers = [][]string{
	{"clock", "descriptors", "failpoint", "keyring", "lifecycle", "metrics", "restart"},
	{"model", "jobspec", "state"},
	{"store"},
	{
		"events", "jobsummary", "variables", "identity", "scheduler",
		"allocdir", "logs", "taskenv", "taskfiles", "services", "health", "hostport", "hoststats", "fingerprint", "devices", "network", "users", "volumes", "timeline", "otlp",
	},
	{"taskapi", "connlimit"},
	{"hooks", "hookplugin"},
	{"taskrunner"},
	{"allocrunner"},
	{"hookhost", "noderunner", "orphans"},
	{"httpapi", "ui", "localnode", "metrics/collect"},
	{"agent"},
	{"agent/config"},
}

// runnerPackages are the packages that run allocations. They do not import the scheduler: they
// receive allocations, and report states, through interfaces that they declare.
var runnerPackages = []string{
	"allocdir", "logs", "taskenv", "taskfiles", "services", "health", "hostport", "hoststats", "fingerprint", "devices", "network", "users", "timeline", "otlp",
	"hooks", "hookplugin", "taskrunner", "allocrunner", "hookhost", "noderunner", "orphans",
}

// runtimeLayerOf returns the index of a package's layer in runtimeLayers, and the entry of the layer that
// contains the package. The package path is relative to runtime.
func runtimeLayerOf(pkg string) (at int, name string) {
	at = -1
	for i, names := range runtimeLayers {
		for _, n := range names {
			if isPackageWithin(pkg, n) && len(n) > len(name) {
				at, name = i, n
			}
		}
	}
	return at, name
}

func TestRuntimeLayers(t *testing.T) {
	for _, line := range strings.Split(listPackageImports(t), "\n") {
		importer, imports, _ := strings.Cut(line, " ")
		importer, ours := strings.CutPrefix(importer, modulePathPrefix+"runtime/")
		if !ours {
			continue
		}
		at, from := runtimeLayerOf(importer)
		if at < 0 {
			t.Errorf("package runtime/%s is in no layer", importer)
			continue
		}
		for _, imported := range strings.Fields(imports) {
			imported, ours := strings.CutPrefix(imported, modulePathPrefix+"runtime/")
			if !ours {
				continue
			}
			below, to := runtimeLayerOf(imported)
			switch {
			case below > at:
				t.Errorf("runtime/%s imports runtime/%s, which is in a later layer", importer, imported)
			case to == "scheduler" && slices.Contains(runnerPackages, from):
				t.Errorf("runtime/%s runs allocations and imports runtime/%s", importer, imported)
			}
		}
	}
}

// sharedCommandPackages are the packages below cmd/nomad-lite that several groups of
// commands import. Each other package there is a group of commands.
var sharedCommandPackages = []string{
	"agentconfig", "agentsocket", "apiclient", "builtins", "cli", "execsession", "filewatch", "jobfile", "localplugins", "monitor", "output", "plugindev", "pluginstatus", "ports",
	"streaming", "tables", "taskreason", "taskview", "terminal", "version",
}

// programTests are the folders with tests of the whole program.
var programTests = []string{"peertest", "systemtest"}

// Only the root of the command tree, and tests of the whole program, import groups of
// commands; only the program imports the root.
func TestCommandGroupsAreIndependent(t *testing.T) {
	const commandsPath = modulePathPrefix + "cmd/nomad-lite"
	groups := 0
	for _, line := range strings.Split(listPackageImports(t), "\n") {
		importer, imports, _ := strings.Cut(line, " ")
		group, _, _ := strings.Cut(strings.TrimPrefix(importer, commandsPath+"/"), "/")
		if importer == commandsPath || slices.Contains(programTests, group) {
			continue
		}
		for _, imported := range strings.Fields(imports) {
			name, below := strings.CutPrefix(imported, commandsPath+"/")
			name, _, _ = strings.Cut(name, "/")
			switch {
			case !below || slices.Contains(sharedCommandPackages, name):
			case importer == commandsPath+"/root" && name != "root":
				groups++
			default:
				t.Errorf("%s imports %s, which is no shared package", importer, imported)
			}
		}
	}
	if groups < 20 {
		t.Errorf("root imports %d groups, want at least 20", groups)
	}
}

func TestFolderImports(t *testing.T) {
	seen := map[string]bool{}
	for _, line := range strings.Split(listPackageImports(t), "\n") {
		importer, imports, _ := strings.Cut(line, " ")
		importer = strings.TrimPrefix(importer, modulePathPrefix)
		from := topFolderOf(importer)
		if from == "" {
			t.Errorf("package %s is in no room", importer)
			continue
		}
		seen[from] = true
		for _, imported := range strings.Fields(imports) {
			imported, ours := strings.CutPrefix(imported, modulePathPrefix)
			if !ours {
				continue
			}
			_, isImporterLeaf := leafPackages[importer]
			_, isImportedLeaf := leafPackages[imported]
			if isImporterLeaf && !isImportedLeaf && !isPackageWithin(imported, importer) {
				t.Errorf("%s imports %s: a leaf package imports only leaf packages of this module", importer, imported)
			}
			if to := topFolderOf(imported); to != from && !slices.Contains(allowedFolderImports[from], to) && !slices.Contains(leafPackages[imported], from) && !slices.Contains(pluginContractPackages[imported], from) {
				t.Errorf("%s imports %s: %s may import %v", importer, imported, from, allowedFolderImports[from])
			}
			for prefix, users := range generatedPackages {
				if isPackageWithin(imported, prefix) && !slices.Contains(users, from) {
					t.Errorf("%s imports %s: generated code stays inside %v", importer, imported, users)
				}
			}
		}
	}
	for name := range allowedFolderImports {
		if !seen[name] {
			t.Errorf("room %s has no package", name)
		}
	}
}

func topFolderOf(pkg string) string {
	for name := range allowedFolderImports {
		if isPackageWithin(pkg, name) {
			return name
		}
	}
	return ""
}

func isPackageWithin(pkg, dir string) bool {
	return pkg == dir || strings.HasPrefix(pkg, dir+"/")
}

// listPackageImports returns a line for each package, with its path and the paths of its imports.
func listPackageImports(t *testing.T) string {
	t.Helper()
	text, err := listImportsOnce()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var listImportsOnce = sync.OnceValues(func() (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
	cmd.Dir = "../.."
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
})

// TestPluginsLinkNoHCL checks that the packages for authors of plugins do not import the parser of
// HCL, of which each plugin would require the modules.
func TestPluginsLinkNoHCL(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", modulePathPrefix+"sdk", modulePathPrefix+"sdk/process").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range strings.Fields(string(out)) {
		if strings.HasPrefix(pkg, "github.com/hashicorp/hcl/") || strings.HasPrefix(pkg, "github.com/zclconf/") {
			t.Errorf("sdk imports %s", pkg)
		}
	}
}
