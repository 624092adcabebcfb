package launch

import (
	"errors"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
)

// If this process has no free descriptors at any step of a reattach, the plugin continues
// to run and can be reattached later.
func TestReattachWithoutDescriptorsKeepsThePlugin(t *testing.T) {
	cfg, _ := newConfig(t, "schema")
	first := mustStartPlugin(t, cfg)
	rec := first.ReattachConfig()
	first.Detach()
	id := osprocess.ID{PID: rec.Pid, StartTime: rec.StartTimeTicks}
	failed, reattached := 0, 0
	for free := range 12 {
		restore := processtest.LimitDescriptors(t, free)
		p, err := ReattachOrKill(t.Context(), cfg, rec)
		restore()
		switch {
		case err == nil:
			reattached++
			p.Detach()
		case errors.Is(err, ErrResourceExhausted):
			failed++
		default:
			t.Errorf("%d descriptors: %v, want %v", free, err, ErrResourceExhausted)
		}
		if !id.Alive() {
			t.Fatalf("%d descriptors: the plugin was ended, %v", free, err)
		}
	}
	if failed == 0 || reattached == 0 {
		t.Errorf("%d attempts failed, %d succeeded: the test proves nothing", failed, reattached)
	}
	p, err := ReattachOrKill(t.Context(), cfg, rec)
	if err != nil {
		t.Fatal(err)
	}
	p.Stop(t.Context())
}
