package localnode

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// An unresponsive file system delays the node update once, and its volume is offered as soon as it answers.
func TestHangingHostVolume(t *testing.T) {
	s, dir := openStore(t), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{ID: "n", Store: s, Logger: hclog.NewNullLogger(), Settings: Settings{HostVolumes: map[string]*api.HostVolumeInfo{
			"local": {Path: dir}, "remote": {Path: "/remote"}, "missing": {Path: dir + "/missing"},
		}}})
		answer := make(chan struct{})
		var calls atomic.Int32
		n.volumePathResolver.locate = func(path string) (*safepath.Location, error) {
			if path == "/remote" {
				calls.Add(1)
				<-answer
				return &safepath.Location{Path: path}, nil
			}
			return safepath.Locate(path)
		}
		for i, wantDelay := range []time.Duration{pathTimeout, 0, 0} {
			began := time.Now()
			if found := n.usableHostVolumes(); len(found) != 1 || found["local"] == nil {
				t.Errorf("check %d: volumes %v", i, found)
			}
			if delay := time.Since(began); delay != wantDelay {
				t.Errorf("check %d took %v, want %v", i, delay, wantDelay)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of stat at a time", n)
		}
		close(answer)
		<-n.recordUpdateRequested
		if found := n.usableHostVolumes(); len(found) != 2 || found["remote"] == nil {
			t.Errorf("after the answer: volumes %v", found)
		}
	})
}

// A path that answers in time causes no node update.
func TestPathResolverReportsOnlyLateAnswers(t *testing.T) {
	c := newPathResolver(func() { t.Error("a late answer was reported") })
	for range 3 {
		results := c.resolvePathsWithTimeout([]string{"/", "/no/such/path"})
		if results["/"].unusableReason != nil || results["/"].location.Path != "/" || !errors.Is(results["/no/such/path"].unusableReason, os.ErrNotExist) || len(results) != 2 {
			t.Errorf("%v", results)
		}
	}
}
