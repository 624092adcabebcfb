package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
)

const goAPIFile = "go-api.txt"

// The declarations of the public packages are promises to authors of plugins.
func TestReferenceGoAPIPromises(t *testing.T) {
	lines := listGoAPI(t)
	promises.Check(t, goAPIFile, lines)
	if t.Failed() {
		return // the checks below expect that no other promise is broken
	}

	const method = "sdk, method (*StartRequest) TaskDir"
	promises.CheckOnly(t, goAPIFile, slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return strings.HasPrefix(line, method+":")
	}), method)
	const task = "sdk, type Task"
	promises.CheckOnly(t, goAPIFile, slices.Collect(func(yield func(string) bool) {
		for _, line := range lines {
			if strings.HasPrefix(line, task+":") {
				line = strings.Replace(line, " }", ", Pause }", 1) // a method that the tasks of authors do not have
			}
			if !yield(line) {
				return
			}
		}
	}), task)
}

// listGoAPI returns a line for each exported declaration of the public packages.
func listGoAPI(t *testing.T) []string {
	t.Helper()
	args := []string{"run", "-C", "../../internal/tools", "./goapi"}
	for line := range strings.Lines(listPackageImports(t)) {
		pkg, _, _ := strings.Cut(strings.TrimPrefix(line, modulePathPrefix), " ")
		if isWithinAny(pkg, publicPackages) && !isWithinAny(pkg, privatePackages) {
			args = append(args, modulePathPrefix+pkg)
		}
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0") // the race detector of CI would build all tools once more
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}
