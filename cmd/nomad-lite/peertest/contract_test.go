package peertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

// The contract tests find the memory limits that Nomad's drivers set. With a wrong number in the .proto, the
// drivers receive other limits, or none.
func TestContractTestsAcceptLimitsOfNomad(t *testing.T) {
	program := peers.ProgramOrSkip(t, "ext-drivers")
	if os.Geteuid() != 0 {
		t.Skip("Nomad's drivers limit tasks as root only")
	}
	for file, config := range map[string]map[string]any{
		"ext-raw-exec": {"enabled": true},
		"ext-exec":     nil,
	} {
		t.Run(file, func(t *testing.T) {
			dir := t.TempDir()
			if err := linkPlugins(dir, map[string]string{file: program}); err != nil {
				t.Fatal(err)
			}
			passed := 0
			err := sdktest.CheckEach(t.Context(), t.Context(), sdktest.Plugin{
				Path:             filepath.Join(dir, file),
				Config:           config,
				Tasks:            sdktest.Tasks{LongRunning: map[string]any{"command": "/bin/sleep", "args": []any{"3600"}}},
				OnlyCasePatterns: "limits.*",
			}, func(r sdktest.Result) {
				if r.Verdict == sdktest.Pass {
					passed++
				} else {
					t.Errorf("%s %s:\n%s", r.Verdict, r.ID, strings.Join(r.Messages, "\n"))
				}
			})
			if err != nil {
				t.Error(err)
			}
			if passed != 4 {
				t.Errorf("%d cases passed, want 4", passed)
			}
		})
	}
}
