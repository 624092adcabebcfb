package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/osprocess/processtest"
	"github.com/nomad-lite/nomad-lite/internal/rpcmux"
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

// countRequests returns how many requests the keeper got on the current connection, with this one.
func countRequests(t *testing.T, c *Client) (n uint64) {
	t.Helper()
	l, err := c.conns.WaitForConn(t.Context())
	if err == nil {
		_, err = l.Call(t.Context(), func(id uint64) error {
			n = id
			return l.conn.Send(&keeperwire.Request{ID: id, Op: keeperwire.OpListFDs})
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStoreFDsStoresAllOrNoneWithOneRequest(t *testing.T) {
	c := startClient(t, Config{Ephemeral: true})
	first, _ := newPipe(t)
	second, _ := newPipe(t)
	files := map[string]*os.File{"a": first, "b": second}
	failed, succeeded := 0, 0
	for free := range 8 {
		before := countRequests(t, c)
		restore := processtest.LimitDescriptors(t, free)
		err := c.StoreFDs(t.Context(), files, false)
		restore()
		requests := countRequests(t, c) - before - 1
		var want []string
		if err == nil {
			succeeded++
			want = []string{"a", "b"}
			if requests != 1 {
				t.Errorf("%d descriptors: %d requests, want 1", free, requests)
			}
		} else {
			failed++
		}
		got := c.StoredFDKeys()
		slices.Sort(got)
		if inKeeper, fetchErr := c.FetchStoredFDKeys(t.Context()); fetchErr != nil || !slices.Equal(got, want) || !slices.Equal(inKeeper, want) {
			t.Errorf("%d descriptors: %v; the client has %q, the keeper %q, %v; want %q", free, err, got, inKeeper, fetchErr, want)
		}
		for key := range files {
			if err := c.RemoveFD(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failed == 0 || succeeded == 0 {
		t.Errorf("%d attempts failed, %d succeeded: the test proves nothing", failed, succeeded)
	}
}

// The next agent copies all stored descriptors with one request for each [keeperwire.MaxMessageFDs] of them, and the others of
// a request if one has been removed meanwhile.
func TestNextAgentCopiesStoredDescriptorsTogether(t *testing.T) {
	const count = 2*keeperwire.MaxMessageFDs + 1
	dir := filepath.Join(t.TempDir(), "run")
	c := startClient(t, Config{DataDir: dir})
	inodeByKey := map[string]uint64{}
	for i := range count {
		r, _ := newPipe(t)
		key := fmt.Sprint("pipe", i)
		if err := c.StoreFD(t.Context(), key, r); err != nil {
			t.Fatal(err)
		}
		inodeByKey[key] = inode(t, r)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	next := startClient(t, Config{DataDir: dir})
	if got := countRequests(t, next); got != 5 {
		t.Errorf("%d requests, want the list, three for the descriptors, and this one", got)
	}
	checkCopies := func() {
		t.Helper()
		keys := next.StoredFDKeys()
		if len(keys) != len(inodeByKey) {
			t.Errorf("%d copies, want %d", len(keys), len(inodeByKey))
		}
		for _, key := range keys {
			f, err := next.DuplicateStoredFD(key)
			if err != nil {
				t.Fatal(err)
			}
			if got := inode(t, f); got != inodeByKey[key] {
				t.Errorf("%s is the file %d, want %d", key, got, inodeByKey[key])
			}
			f.Close()
		}
	}
	checkCopies()

	l, err := next.conns.WaitForConn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"pipe1", "pipe2", "pipe3"} {
		next.mu.Lock()
		unix.Close(next.fdCopyByKey[key].fd)
		delete(next.fdCopyByKey, key)
		next.mu.Unlock()
	}
	if _, _, err := l.call(t.Context(), &keeperwire.Request{Op: keeperwire.OpRemoveFD, Keys: []string{"pipe2"}}); err != nil {
		t.Fatal(err)
	}
	delete(inodeByKey, "pipe2")
	if _, err := next.copyFDsFromKeeper(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	fdByKey, err := l.getFDs(t.Context(), []string{"pipe1", "pipe2", "pipe3"})
	if err != nil || len(fdByKey) != 2 {
		t.Errorf("got %v, %v", fdByKey, err)
	}
	for _, fd := range fdByKey {
		unix.Close(fd)
	}
	checkCopies()
}

func inode(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// A request that waits for a keeper ends with its context, even if the last keeper has died during the handover of descriptors.
func TestStoreFDEndsWithItsContext(t *testing.T) {
	c := &Client{conns: rpcmux.NewReconnector[*clientConn](make(chan struct{}), ErrClosed), fdCopyByKey: make(map[string]fdCopy)}
	c.conns.SetConn(nil, fmt.Errorf("hand over descriptors: %w", errConnDown))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, _ := newPipe(t)
	ended := make(chan error, 1)
	go func() { ended <- c.StoreFD(ctx, "a", f) }()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) || len(c.fdCopyByKey) > 0 {
			t.Errorf("got %v, copies %v", err, c.fdCopyByKey)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("StoreFD does not end")
	}
}
