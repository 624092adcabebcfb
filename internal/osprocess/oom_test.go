//go:build linux

package osprocess

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
)

func TestResetOOMScore(t *testing.T) {
	for before, want := range map[string]string{"-500": "0", "-1": "0", "0": "0", "300": "300"} {
		processtest.SetOOMScore(t, before)
		cmd := exec.Command("/bin/sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := ResetOOMScore(cmd.Process.Pid); err != nil {
			t.Errorf("%s: %v", before, err)
		}
		text, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/oom_score_adj")
		if got := strings.TrimSpace(string(text)); err != nil || got != want {
			t.Errorf("%s became %s, %v, want %s", before, got, err, want)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if err := ResetOOMScore(cmd.Process.Pid); err != nil {
			t.Errorf("a process that has ended: %v", err)
		}
	}
}
