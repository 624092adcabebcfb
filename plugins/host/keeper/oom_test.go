package keeper

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func readOOMScore(t *testing.T, pid string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// expectOOMProtection asserts that the keeper is protected, and its children are not.
func expectOOMProtection(t *testing.T, c *Client) {
	t.Helper()
	r, w := newPipe(t)
	// If the child's score were set after the fork, a grandchild could inherit the keeper's
	// score.
	look := sh("sh -c 'cat /proc/self/oom_score_adj'")
	look.Stdout = w
	p, err := c.Spawn(t.Context(), look)
	if err == nil {
		_, err = c.Wait(t.Context(), p)
	}
	if err != nil {
		t.Fatal(err)
	}
	var childScore string
	if _, err := fmt.Fscan(r, &childScore); err != nil {
		t.Fatal(err)
	}
	if own := readOOMScore(t, "self"); childScore != own {
		t.Errorf("a child has the score %s, want %s", childScore, own)
	}
	if got := readOOMScore(t, fmt.Sprint(c.Status().KeeperProcess.PID)); got != "-999" {
		t.Errorf("the keeper has the score %s, want -999", got)
	}
}

// canLowerOOMScore reports whether this process may lower its OOM score: in some containers
// even root may not.
func canLowerOOMScore(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capData [2]unix.CapUserData
	if err := unix.Capget(&header, &capData[0]); err != nil {
		t.Fatal(err)
	}
	return capData[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestKeeperIsEndedLastWhenMemoryRunsOut(t *testing.T) {
	t.Parallel()
	if !canLowerOOMScore(t) {
		t.Skip("needs CAP_SYS_RESOURCE, to lower the score")
	}
	expectOOMProtection(t, startClient(t, Config{Ephemeral: true}))
}
