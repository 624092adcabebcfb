package root

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The package undumpable is initialized before all packages outside of the standard library, and before those of the
// standard library that open files.
func TestProcessIsUndumpableBeforeOtherPackages(t *testing.T) {
	const undumpable = "github.com/nomad-lite/nomad-lite/internal/confine/undumpable"
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var order []string
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) @`).FindAllSubmatch(out, -1) {
		order = append(order, string(m[1]))
	}
	at := slices.Index(order, undumpable)
	if at < 0 {
		t.Fatalf("the package is not initialized: %q", order)
	}
	for _, name := range order[:at] {
		if name == "github.com/charmbracelet/x/ansi/parser" {
			continue // imports nothing, so its path decides; it only fills a table, in 0.05 ms
		}
		if first, _, _ := strings.Cut(name, "/"); strings.Contains(first, ".") || name == "os" || name == "net" {
			t.Errorf("%s is initialized before", name)
		}
	}
}
