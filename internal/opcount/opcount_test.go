package opcount

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseReadsString(t *testing.T) {
	want := Counts{Fork: 1, Mount: 20, Netlink: 300, Sync: 4}
	if got := Parse(want.String()); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Parse("fork=2 newkind=7 mount=x ="); got != (Counts{Fork: 2}) {
		t.Errorf("got %v", got)
	}
}

func TestCountsOfOtherProcessesAreAdded(t *testing.T) {
	before := Read()
	Count(Mount)
	Add(Counts{Fork: 1, Mount: 2})
	after := Read()
	if after[Mount] != before[Mount]+3 || after[Fork] != before[Fork]+1 || after[Sync] != before[Sync] {
		t.Errorf("before %v, after %v", before, after)
	}
	if after.Max(before) != after || before.Max(after) != after {
		t.Errorf("the newer counts of %v and %v are %v", before, after, before.Max(after))
	}
}

// operationCalls maps functions to the operation that a call of them makes. An entry without a package is a method.
var operationCalls = map[string]string{
	"exec.Command": "Fork", "exec.CommandContext": "Fork", "os.StartProcess": "Fork", "syscall.ForkExec": "Fork",

	"unix.Mount": "Mount", "unix.Unmount": "Mount", "unix.MoveMount": "Mount", "unix.OpenTree": "Mount",
	"unix.Fsmount": "Mount", "unix.MountSetattr": "Mount", "unix.PivotRoot": "Mount",

	"netlink.LinkByName": "Netlink", "netlink.LinkByIndex": "Netlink", "netlink.LinkAdd": "Netlink", "netlink.LinkDel": "Netlink",
	"netlink.LinkSetUp": "Netlink", "netlink.LinkSetAlias": "Netlink", "netlink.LinkSetHairpin": "Netlink", "netlink.LinkSetGroup": "Netlink",
	"netlink.LinkModify": "Netlink", "netlink.LinkList": "Netlink", "netlink.AddrReplace": "Netlink", "netlink.AddrList": "Netlink",
	"netlink.RouteReplace": "Netlink", "netlink.RouteDel": "Netlink",
	".Flush": "Netlink", ".GetSetElements": "Netlink", ".GetRules": "Netlink", ".ListTablesOfFamily": "Netlink", ".ListChainsOfTableFamily": "Netlink",

	".Sync": "Sync",
}

// uncounted are the packages whose operations are not counted: the command line and its tests, programs that help tests,
// and processes that cannot report counts.
var uncounted = []string{
	"cmd", "internal/tools", "internal/testsupport", "internal/osprocess/processtest", "internal/groupexec",
	"sdk/sdktest", "sdk/examples", "plugins/driver/drivertest", "builtin/docker/dockertest",
	"plugins/host/keeper/keeperserver", // nomad_lite_plugin_restarts_total counts the plugins that it starts
	"builtin/artifact/walk.go",         // runs in a process that is confined
}

// TestEachCallSiteIsCounted checks that each function of the program that makes an operation counts it as often as it has calls.
func TestEachCallSiteIsCounted(t *testing.T) {
	root := filepath.Join("..", "..")
	counted := 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch name = filepath.ToSlash(name); {
		case err != nil:
			return err
		case slices.Contains(uncounted, name) && e.IsDir(), e.IsDir() && strings.HasPrefix(e.Name(), ".") && name != ".", e.Name() == "testdata":
			return fs.SkipDir
		case e.IsDir(), slices.Contains(uncounted, name), filepath.Ext(name) != ".go", strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		usesNftables := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"github.com/google/nftables"` })
		for _, d := range file.Decls {
			made, counts := map[string]int{}, map[string]int{}
			ast.Inspect(d, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if s, ok := call.Fun.(*ast.SelectorExpr); ok {
					receiver := "?" // an expression
					if x, ok := s.X.(*ast.Ident); ok {
						receiver = x.Name
					}
					if kind := operationCalls[receiver+"."+s.Sel.Name]; kind != "" {
						made[kind]++
					} else if kind := operationCalls["."+s.Sel.Name]; kind != "" && (kind != "Netlink" || usesNftables) {
						made[kind]++
					}
					if receiver == "opcount" && s.Sel.Name == "Count" {
						counts[call.Args[0].(*ast.SelectorExpr).Sel.Name]++
						counted++
					}
				}
				return true
			})
			for kind, n := range made {
				if counts[kind] < n {
					t.Errorf("%s: %d calls are operations of the kind %s, %d are counted", files.Position(d.Pos()), n, kind, counts[kind])
				}
			}
		}
		return nil
	})
	if err != nil || counted < 80 {
		t.Errorf("%d counted call sites, error %v", counted, err)
	}
}
