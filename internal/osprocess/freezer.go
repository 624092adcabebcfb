//go:build linux

package osprocess

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// freezerLocks has a lock for each cgroup that a thread of this process is in (Enter) or that this process freezes (Kill).
var freezerLocks = struct {
	mu sync.Mutex
	m  map[Cgroup]*freezerLock
}{m: make(map[Cgroup]*freezerLock)}

type freezerLock struct {
	sync.RWMutex     // read-locked while a thread of this process is in the cgroup, and locked while Kill freezes the cgroup
	userCount    int // number of callers of acquireFreezerLock that have not called release
}

// acquireFreezerLock returns the lock of a cgroup. The caller must call release after its last use.
func acquireFreezerLock(g Cgroup) (l *freezerLock, release func()) {
	freezerLocks.mu.Lock()
	defer freezerLocks.mu.Unlock()
	l = freezerLocks.m[g]
	if l == nil {
		l = &freezerLock{}
		freezerLocks.m[g] = l
	}
	l.userCount++
	return l, func() {
		freezerLocks.mu.Lock()
		defer freezerLocks.mu.Unlock()
		if l.userCount--; l.userCount == 0 {
			delete(freezerLocks.m, g)
		}
	}
}

// Enter must be called before a thread of this process enters a cgroup v1. Until leave is called, Kill does not freeze the
// cgroup: a frozen thread can stop the whole Go program, which then never thaws it. Enter blocks while Kill freezes the
// cgroup. It may be called concurrently.
func (c Cgroup) Enter() (leave func()) {
	l, release := acquireFreezerLock(c)
	l.RLock()
	return func() {
		l.RUnlock()
		release()
	}
}

// hasOwnThread reports whether a thread of this process is in the cgroup. A thread that exits stays in the cgroup for a
// short time after leave was called.
func (c Cgroup) hasOwnThread() bool {
	text, err := os.ReadFile(path.Join(string(c), "cgroup.procs"))
	return err == nil && slices.Contains(strings.Fields(string(text)), strconv.Itoa(os.Getpid()))
}
