package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
)

// TestStageStartsBeforeOtherPackages compares the packages that are initialized before a stage takes the process over with the
// budget: each isolated task waits for all of them. This test is linked with the packages of nomad-lite.
func TestStageStartsBeforeOtherPackages(t *testing.T) {
	const maxPackages = 110 // of 370
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	cmd := exec.Command(program)
	cmd.Env = []string{stage.EnvName + "=1", "GODEBUG=inittrace=1"}
	cmd.Stderr = &output
	cmd.Run() // the stage fails, because it has no configuration
	var packages []string
	for _, line := range regexp.MustCompile(`(?m)^init (\S+) @`).FindAllStringSubmatch(output.String(), -1) {
		packages = append(packages, line[1])
	}
	if len(packages) == 0 || slices.Contains(packages, "net") || len(packages) > maxPackages {
		t.Errorf("%d packages are initialized before a stage, want at most %d, and not net, which waits for most others:\n%v", len(packages), maxPackages, packages)
	}
}
