package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

const modulePathPrefix = "github.com/nomad-lite/nomad-lite/"

// floors are the packages of the module from the ground up, each with the packages below it that have no entry of their own. A
// package imports packages of its own entry and of lower floors.
var floors = [][]string{
	{"internal"},
	{"hclspec"},
	{"plugins"},
	{"plugins/host"},
	{"sdk"},
	{"builtin"},
	{"runtime/core/lifecycle", "runtime/job/health", "runtime/acl"},
	{"runtime/core/restart"},
	{"runtime/job"},
	{"runtime/core/record"},
	{"runtime/store/state", "runtime/store/keyring"},
	{"runtime/core/tasksteps", "runtime/core/taskenv", "runtime/core/timeline"},
	{"runtime/core/hooks", "runtime/core/taskdriver"},
	{"runtime/core"},
	{"runtime/core/taskrunner"},
	{"runtime/core/allocrunner"},
	{"runtime/core/noderunner"},
	{"runtime/explain"},
	{"runtime/store"},
	{"runtime/node"},
	{"runtime/node/hooks"},
	{"runtime/node/taskexec", "runtime/node/orphans", "runtime/scheduler"},
	{"runtime/cluster"},
	{"runtime/agent"},
	{"cmd/nomad-lite"},
}

// Drivers and hooks are processes of their own: the packages that they are made of and runtime meet on the wire only.
var pluginFolders = []string{"sdk", "builtin"}

// generatedPackages maps each package of generated code to the folders that can import it, which
// own the wire format.
var generatedPackages = map[string][]string{
	"plugins/proto":  {"plugins"},
	"hclspec/specpb": {"hclspec", "plugins"},
}

// floorOf returns the index of a package's floor, and the entry of the floor that contains the package.
func floorOf(pkg string) (floor int, entry string) {
	floor = -1
	for i, entries := range floors {
		for _, e := range entries {
			if isPackageWithin(pkg, e) && len(e) > len(entry) {
				floor, entry = i, e
			}
		}
	}
	return floor, entry
}

func TestPackagesImportLowerFloors(t *testing.T) {
	used := map[string]bool{}
	for _, line := range strings.Split(listPackageImports(t), "\n") {
		importer, imports, _ := strings.Cut(line, " ")
		importer = strings.TrimPrefix(importer, modulePathPrefix)
		if isPackageWithin(importer, corePackage) {
			imports, _, _ = strings.Cut(imports, testImportsMark) // its tests use the real hooks of a machine
		}
		floor, entry := floorOf(importer)
		if floor < 0 {
			t.Errorf("package %s is on no floor", importer)
			continue
		}
		used[entry] = true
		for _, imported := range strings.Fields(imports) {
			imported, ours := strings.CutPrefix(imported, modulePathPrefix)
			if !ours {
				continue
			}
			if to, other := floorOf(imported); other != entry && to >= floor {
				t.Errorf("%s imports %s, which is not on a lower floor", importer, imported)
			}
			if isWithinAny(importer, pluginFolders) && isPackageWithin(imported, "runtime") || isPackageWithin(importer, "runtime") && isWithinAny(imported, pluginFolders) {
				t.Errorf("%s imports %s: plugins and runtime meet on the wire only", importer, imported)
			}
			for prefix, users := range generatedPackages {
				if isPackageWithin(imported, prefix) && !isWithinAny(importer, users) {
					t.Errorf("%s imports %s: generated code stays inside %v", importer, imported, users)
				}
			}
		}
	}
	for _, entries := range floors {
		for _, e := range entries {
			if !used[e] {
				t.Errorf("floor entry %s has no package", e)
			}
		}
	}
}

// TestPackageNamesAreUnique checks that a name before a dot means one package. Groups of commands are exempt, because only the
// root of the command tree imports them.
func TestPackageNamesAreUnique(t *testing.T) {
	packages := map[string]string{}
	for _, line := range strings.Split(listPackageImports(t), "\n") {
		pkg, _, _ := strings.Cut(line, " ")
		pkg = strings.TrimPrefix(pkg, modulePathPrefix)
		if isCommandGroup(pkg) || isPackageWithin(pkg, "sdk/examples") {
			continue
		}
		name := path.Base(pkg)
		if other, found := packages[name]; found {
			t.Errorf("packages %s and %s have one name", other, pkg)
		}
		packages[name] = pkg
	}
}

const commandsFolder = "cmd/nomad-lite"

// sharedCommandPackages are the folders below cmd/nomad-lite, and the group of commands, that groups of commands can import.
var sharedCommandPackages = []string{commandsFolder + "/internal", commandsFolder + "/version"}

// isCommandGroup reports whether a package is a group of commands or the root of the command tree, and no test of the whole program.
func isCommandGroup(pkg string) bool {
	return isPackageWithin(pkg, commandsFolder) && !isWithinAny(pkg, []string{commandsFolder + "/internal", commandsFolder + "/peertest", commandsFolder + "/systemtest"})
}

// Only the root of the command tree, and tests of the whole program, import groups of
// commands; only the program imports the root.
func TestCommandGroupsAreIndependent(t *testing.T) {
	const root = commandsFolder + "/root"
	groups := 0
	for _, line := range strings.Split(listPackageImports(t), "\n") {
		importer, imports, _ := strings.Cut(line, " ")
		importer = strings.TrimPrefix(importer, modulePathPrefix)
		if importer == commandsFolder || isWithinAny(importer, []string{commandsFolder + "/peertest", commandsFolder + "/systemtest"}) {
			continue
		}
		for _, imported := range strings.Fields(imports) {
			imported = strings.TrimPrefix(imported, modulePathPrefix)
			switch {
			case !isCommandGroup(imported), isWithinAny(imported, sharedCommandPackages), isPackageWithin(imported, importer):
			case importer == root:
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

func isPackageWithin(pkg, dir string) bool {
	return pkg == dir || strings.HasPrefix(pkg, dir+"/")
}

func isWithinAny(pkg string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return isPackageWithin(pkg, dir) })
}

// agentSideGroups are the groups of commands that run an agent, jobs or plugins in their own process, or open the state file.
// All other groups only send requests to an agent, which can be on another machine.
var agentSideGroups = []string{"agent", "plugin", "root", "run", "statefile", "validate"}

// clientRuntimePackages have the job language, the rules about jobs, and sentences about their state.
var clientRuntimePackages = []string{"runtime/job", "runtime/explain", "runtime/core/lifecycle", "runtime/core/restart"}

// Commands that only send requests to an agent link nothing else of runtime, and no gRPC.
func TestClientCommandsLinkNoAgent(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	groups := 0
	for line := range strings.Lines(string(out)) {
		importer, deps, _ := strings.Cut(strings.TrimSpace(line), " ")
		importer = strings.TrimPrefix(importer, modulePathPrefix)
		if importer == commandsFolder || !isCommandGroup(importer) || slices.Contains(agentSideGroups, path.Base(importer)) {
			continue
		}
		groups++
		for _, dep := range strings.Fields(deps) {
			isWire := dep == "google.golang.org/grpc"
			dep, ours := strings.CutPrefix(dep, modulePathPrefix)
			if !ours && !isWire {
				continue
			}
			if isWire || isPackageWithin(dep, "runtime") && !isWithinAny(dep, clientRuntimePackages) || isWithinAny(dep, []string{"plugins/host", "builtin"}) {
				t.Errorf("%s links %s", importer, dep)
			}
		}
	}
	if groups < 22 {
		t.Errorf("%d groups of commands only send requests, want at least 22", groups)
	}
}

// testPackages are packages that only tests import.
var testPackages = []string{"internal/testsupport", "runtime/core/tasksteps/transitioncheck", "runtime/job/importer/importertest", "runtime/cluster/clustertest"}

// TestProgramLinksNoTestPackages checks that the packages that only tests import are not in the program.
func TestProgramLinksNoTestPackages(t *testing.T) {
	for _, pkg := range listLinkedPackages(t, ".") {
		if isWithinAny(strings.TrimPrefix(pkg, modulePathPrefix), testPackages) {
			t.Errorf("the program links %s", pkg)
		}
	}
}

// listLinkedPackages returns the paths of the packages that the patterns match, and of all packages that these import.
func listLinkedPackages(t *testing.T, patterns ...string) []string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-deps"}, patterns...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// TestClusterNodeLinksNoScheduler checks that the packages of a cluster's node do not need the scheduler, which such a node does
// not run.
func TestClusterNodeLinksNoScheduler(t *testing.T) {
	checkLinks(t, "runtime/cluster/...", "runtime/cluster/replica", "runtime/scheduler")
}

// TestAgentLinksNoExporter checks that the agent does not link the export of traces, which a program adds as an extension.
func TestAgentLinksNoExporter(t *testing.T) {
	checkLinks(t, "runtime/agent", "runtime/agent/servicelist", "runtime/agent/otlp")
}

// checkLinks checks that the packages that a pattern matches link one package of the module, and do not link another.
func checkLinks(t *testing.T, pattern, wantLinked, wantUnlinked string) {
	t.Helper()
	linked := listLinkedPackages(t, modulePathPrefix+pattern)
	if !slices.Contains(linked, modulePathPrefix+wantLinked) || slices.Contains(linked, modulePathPrefix+wantUnlinked) {
		t.Errorf("%s links %s, or does not link %s", pattern, wantUnlinked, wantLinked)
	}
}

// testImportsMark precedes the imports of a package's tests.
const testImportsMark = "(tests)"

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
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}} `+testImportsMark+` {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
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
	for _, pkg := range listLinkedPackages(t, modulePathPrefix+"sdk", modulePathPrefix+"sdk/process") {
		if strings.HasPrefix(pkg, "github.com/hashicorp/hcl/") || strings.HasPrefix(pkg, "github.com/zclconf/") {
			t.Errorf("sdk imports %s", pkg)
		}
	}
}

// publicPackages are the packages that other modules can rely on, each with the packages below it except those of privatePackages.
var publicPackages = []string{"hclspec", "plugins/base", "plugins/driver", "plugins/hook", "plugins/device", "sdk"}

// privatePackages are packages below the public packages that can change: the wire formats, the parts of hosts, and fakes of tests.
var privatePackages = []string{
	"hclspec/specpb", "hclspec/specwire", "hclspec/convert", "hclspec/nesting", "hclspec/jsonschema", "hclspec/block",
	"plugins/base/basewire", "plugins/driver/driverwire", "plugins/driver/drivertest", "plugins/hook/hookwire", "plugins/device/devicewire",
}

// TestPluginsImportPublicPackages checks that the examples, which authors copy, import only public packages.
func TestPluginsImportPublicPackages(t *testing.T) {
	for _, prefix := range slices.Concat(publicPackages, privatePackages) {
		if !slices.ContainsFunc(strings.Split(listPackageImports(t), "\n"), func(line string) bool {
			return strings.HasPrefix(line, modulePathPrefix+prefix+" ")
		}) {
			t.Errorf("there is no package %s", prefix)
		}
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, modulePathPrefix+"sdk/examples/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	imports := 0
	for line := range strings.Lines(string(out)) {
		example, imported, _ := strings.Cut(line, " ")
		for _, pkg := range strings.Fields(imported) {
			pkg, ours := strings.CutPrefix(pkg, modulePathPrefix)
			if !ours {
				continue
			}
			imports++
			if !isWithinAny(pkg, publicPackages) || isWithinAny(pkg, privatePackages) {
				t.Errorf("%s imports %s, which is not public", example, pkg)
			}
		}
	}
	if imports < 10 {
		t.Errorf("the examples import %d packages of the module, want at least 10", imports)
	}
}

// packagesWithoutWire are packages of types, rules and records. A change of the wire format does not rebuild them.
var packagesWithoutWire = []string{
	"hclspec", "plugins/base", "plugins/driver", "plugins/hook", "plugins/device",
	"runtime/job/model", "runtime/store/state", "runtime/store",
}

// wireModules are the modules of the plugin protocol.
var wireModules = []string{"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/hashicorp/go-plugin"}

func TestRulesAndRecordsLinkNoWire(t *testing.T) {
	for _, pkg := range packagesWithoutWire {
		for _, dep := range listLinkedPackages(t, modulePathPrefix+pkg) {
			if isWithinAny(dep, wireModules) {
				t.Errorf("%s links %s", pkg, dep)
				break // the module's other packages follow from the same import
			}
		}
	}
	// Package driverwire shows that the check finds the modules.
	linked := listLinkedPackages(t, modulePathPrefix+"plugins/driver/driverwire")
	for _, module := range wireModules {
		if !slices.ContainsFunc(linked, func(pkg string) bool { return isPackageWithin(pkg, module) }) {
			t.Errorf("driverwire does not link %s", module)
		}
	}
}

const corePackage = "runtime/core"

// coreFoundations are the packages of the module that packages of the core import.
var coreFoundations = []string{corePackage, "runtime/job", "runtime/store/state", "internal", "hclspec", "plugins/base", "plugins/driver", "plugins/hook", "plugins/device"}

// TestCoreLinksNoMachine checks that the packages that decide what happens to a task link nothing that does it: no gRPC,
// go-plugin, HCL, bbolt, Prometheus or netlink, and no package of this module that uses one.
func TestCoreLinksNoMachine(t *testing.T) {
	forbidden := []string{
		"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/hashicorp/go-plugin", "github.com/hashicorp/hcl", "go.etcd.io/bbolt", "github.com/prometheus/client_golang",
		"github.com/vishvananda/netlink",
	}
	for _, dep := range listLinkedPackages(t, modulePathPrefix+corePackage+"/...") {
		if isWithinAny(dep, forbidden) {
			t.Errorf("the core links %s", dep)
		}
		if ours, isOurs := strings.CutPrefix(dep, modulePathPrefix); isOurs && !isWithinAny(ours, coreFoundations) {
			t.Errorf("the core links %s", ours)
		}
	}
	// The package that evaluates config blocks for the core shows that the check finds a module.
	if !slices.ContainsFunc(listLinkedPackages(t, modulePathPrefix+"hclspec/block"), func(dep string) bool { return isWithinAny(dep, forbidden) }) {
		t.Errorf("hclspec/block links none of %v", forbidden)
	}
}

// The packages of the contract import the standard library, hclspec and ground packages only.
func TestContractHasNoOtherModules(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`,
		modulePathPrefix+"plugins/base", modulePathPrefix+"plugins/driver", modulePathPrefix+"plugins/hook", modulePathPrefix+"plugins/device").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		importer, imports, _ := strings.Cut(line, " ")
		for _, pkg := range strings.Fields(imports) {
			ours, isOurs := strings.CutPrefix(pkg, modulePathPrefix)
			if isOurs && !isWithinAny(ours, []string{"internal", "hclspec", "plugins"}) || !isOurs && strings.Contains(pkg, ".") {
				t.Errorf("%s imports %s", importer, pkg)
			}
		}
	}
}
