package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// Processes that take the program over while its packages are initialized run before most packages: each isolated task waits for
// those that are initialized before its stage, and their variables are memory of each helper process. This test is linked with the
// packages of nomad-lite. Without a configuration, each process exits.
func TestProcessStartsBeforeOtherPackages(t *testing.T) {
	const maxPackages = 111 // of 410
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, cmd := range map[string]*exec.Cmd{
		"stage":  {Path: program, Args: []string{"nomad-lite"}, Env: []string{stage.EnvName + "=1"}},
		"keeper": {Path: program, Args: []string{"nomad-lite", keeperwire.CommandName}},

		"log collector": {Path: program, Args: []string{"nomad-lite", collectorwire.CommandName}},
	} {
		t.Run(name, func(t *testing.T) {
			var output bytes.Buffer
			cmd.Env = append(cmd.Env, "GODEBUG=inittrace=1")
			cmd.Stderr = &output
			if cmd.Run() == nil {
				t.Error("the process does not report an error")
			}
			var packages []string
			for _, line := range regexp.MustCompile(`(?m)^init (\S+) @`).FindAllStringSubmatch(output.String(), -1) {
				packages = append(packages, line[1])
			}
			if len(packages) == 0 || slices.Contains(packages, "net") || len(packages) > maxPackages {
				t.Errorf("%d packages are initialized before, want at most %d, and not net, which waits for most others:\n%v", len(packages), maxPackages, packages)
			}
			if !slices.Contains(packages, modulePathPrefix+"internal/confine/undumpable") {
				t.Error("other processes of the same user can trace the process")
			}
		})
	}
}
