package keeper

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func oomScore(t *testing.T, pid string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// expectProtected asserts that the keeper is protected, and its children are not.
func expectProtected(t *testing.T, c *Client) {
	t.Helper()
	r, w := pipe(t)
	// A grandchild could inherit a score that the child had only at first.
	look := sh("sh -c 'cat /proc/self/oom_score_adj'")
	look.Stdout = w
	p, err := c.Spawn(t.Context(), look)
	if err == nil {
		_, err = c.Wait(t.Context(), p)
	}
	if err != nil {
		t.Fatal(err)
	}
	var child string
	if _, err := fmt.Fscan(r, &child); err != nil {
		t.Fatal(err)
	}
	if own := oomScore(t, "self"); child != own {
		t.Errorf("a child has the score %s, want %s", child, own)
	}
	if got := oomScore(t, fmt.Sprint(c.Process().PID)); got != "-999" {
		t.Errorf("the keeper has the score %s, want -999", got)
	}
}

// mayProtect reports whether this process may lower its score. In some containers root may
// not.
func mayProtect(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestKeeperIsEndedLastWhenMemoryRunsOut(t *testing.T) {
	t.Parallel()
	if !mayProtect(t) {
		t.Skip("needs CAP_SYS_RESOURCE, to lower the score")
	}
	expectProtected(t, start(t, Config{Ephemeral: true}))
}
