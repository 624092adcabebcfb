package confine

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// With CAP_CHOWN alone root cannot open what another user has closed, but can give files
// away; the other threads of the process have all.
func TestKeepCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which has capabilities")
	}
	dir := t.TempDir()
	closed, own := filepath.Join(dir, "closed"), filepath.Join(dir, "own")
	for _, path := range []string{closed, own} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(closed, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	type result struct{ drop, closed, own, chown error }
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // ends with the goroutine
		r := result{drop: KeepCapabilities(unix.CAP_CHOWN)}
		_, r.closed = os.ReadFile(closed)
		_, r.own = os.ReadFile(own)
		r.chown = os.Chown(own, 12345, 12345)
		results <- r
	}()
	if r := <-results; r.drop != nil || !errors.Is(r.closed, os.ErrPermission) || r.own != nil || r.chown != nil {
		t.Errorf("on the thread: %v, a file of another user: %v, one of root: %v, its owner: %v", r.drop, r.closed, r.own, r.chown)
	}
	if _, err := os.ReadFile(closed); err != nil {
		t.Errorf("the process has lost its capabilities: %v", err)
	}
}
