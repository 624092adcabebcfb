package keeper

import (
	"os"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// If an agent has no free descriptors at any step of connecting to the keeper, it neither
// kills nor replaces the keeper, because the keeper has the exit statuses of tasks.
func TestAgentWithoutDescriptorsKeepsKeeper(t *testing.T) {
	for name, socket := range map[string]bool{"with its socket": true, "when its socket is missing": false} {
		t.Run(name, func(t *testing.T) {
			c := startClient(t, Config{Ephemeral: true})
			r, _ := newPipe(t)
			if err := c.StoreFD(t.Context(), "a", r); err != nil {
				t.Fatal(err)
			}
			keeper := c.Status().KeeperProcess
			failed, connected := 0, 0
			for free := range 12 {
				if !socket {
					if err := os.Remove(c.SocketPath()); err != nil && !os.IsNotExist(err) {
						t.Fatal(err)
					}
				}
				restore := processtest.LimitDescriptors(t, free)
				l, err := c.connectOrStartKeeper(t.Context())
				restore()
				switch {
				case err == nil:
					connected++
					if l.keeperHello.Process != keeper {
						t.Errorf("%d descriptors: connected to %v, want %v", free, l.keeperHello.Process, keeper)
					}
					l.closeAndWait()
				case osprocess.IsResourceExhausted(err):
					failed++
				default:
					t.Errorf("%d descriptors: %v, want an error of the descriptors", free, err)
				}
				if p, running, err := c.dataDir.LockOwner(keeperwire.PIDFileName); err != nil || !running || p != keeper || !keeper.Alive() {
					t.Fatalf("%d descriptors: the keeper is %v, running %v, %v; before %v", free, p, running, err, keeper)
				}
			}
			if failed == 0 || connected == 0 {
				t.Errorf("%d attempts failed, %d succeeded: the test proves nothing", failed, connected)
			}
			if f, err := c.DuplicateStoredFD("a"); err != nil {
				t.Errorf("what the keeper holds: %v", err)
			} else {
				f.Close()
			}
		})
	}
}
