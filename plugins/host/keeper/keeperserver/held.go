package keeperserver

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// storedFD is one descriptor that the keeper stores for its clients.
type storedFD struct {
	fd int
	// drainWithoutAgent means that the keeper reads and discards the data while no agent is
	// connected.
	drainWithoutAgent bool
	isListener        bool        // fd is a socket that listens: the keeper resets its connections while no agent is connected
	drainReader       *os.File    // duplicate of fd from which the keeper reads or accepts without an agent; nil otherwise
	resetTimer        *time.Timer // starts the reset of connections; nil while an agent is connected
}

// newConnDelay is the time after the last agent has disconnected during which connections to a stored listener wait for the next
// agent. Afterwards the keeper resets them.
const newConnDelay = 2 * time.Second

func newStoredFD(fd int, drainWithoutAgent bool) *storedFD {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return &storedFD{fd: fd, drainWithoutAgent: drainWithoutAgent, isListener: err == nil && listens == 1}
}

func (se *server) storeFDLocked(key string, fd int, drainWithoutAgent bool) {
	se.removeFDLocked(key)
	h := newStoredFD(fd, drainWithoutAgent)
	se.storedFDByKey[key] = h
	if se.agentConns.connectedCount == 0 {
		se.startDrainLocked(h)
	}
}

func (se *server) removeFDLocked(key string) {
	h := se.storedFDByKey[key]
	if h == nil {
		return
	}
	stopDrain(h)
	unix.Close(h.fd)
	delete(se.storedFDByKey, key)
}

// duplicateStoredFDsLocked returns duplicates of the descriptors under the requested keys. If one key
// has no descriptor, it returns no descriptors and an error response.
func (se *server) duplicateStoredFDsLocked(req *keeperwire.Request) ([]int, *keeperwire.Response) {
	resp := &keeperwire.Response{}
	if len(req.Keys) > keeperwire.MaxMessageFDs {
		resp.Error = fmt.Sprintf("take of %d descriptors at once is over the limit of %d", len(req.Keys), keeperwire.MaxMessageFDs)
		return nil, resp
	}
	var fds []int
	for _, key := range req.Keys {
		h := se.storedFDByKey[key]
		if h == nil {
			framing.CloseAll(fds)
			resp.Code = keeperwire.CodeFDNotStored
			return nil, resp
		}
		fd, err := keeperwire.DuplicateFD(h.fd)
		if err != nil {
			framing.CloseAll(fds)
			return nil, responseFromErrorOrNil(fmt.Errorf("take %q: %w", key, err))
		}
		fds = append(fds, fd)
	}
	return fds, resp
}

// anyStoredFDHasOpenPeerLocked reports whether the other end of any stored descriptor is open. A listener has no other end:
// its port is free when the keeper has exited.
func (se *server) anyStoredFDHasOpenPeerLocked() bool {
	for _, h := range se.storedFDByKey {
		if h.isListener {
			continue
		}
		poll := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 0); err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(h.fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFREG {
			continue
		}
		if poll[0].Revents&(unix.POLLHUP|unix.POLLERR) == 0 {
			return true
		}
	}
	return false
}

// startAllDrainsLocked starts to drain the stored descriptors that have drainWithoutAgent, and after newConnDelay to reset the
// connections to listeners. It is called when no agent is connected.
func (se *server) startAllDrainsLocked() {
	for _, h := range se.storedFDByKey {
		se.startDrainLocked(h)
	}
}

// stopAllDrainsLocked stops draining all descriptors. It is called when an agent has connected, which reads the data.
func (se *server) stopAllDrainsLocked() {
	for _, h := range se.storedFDByKey {
		stopDrain(h)
	}
}

func (se *server) startDrainLocked(h *storedFD) {
	switch {
	case h.isListener && h.resetTimer == nil:
		var timer *time.Timer
		timer = time.AfterFunc(newConnDelay, func() {
			se.mu.Lock()
			defer se.mu.Unlock()
			if h.resetTimer == timer {
				se.consumeLocked(h, resetConns)
			}
		})
		h.resetTimer = timer
	case h.drainWithoutAgent && h.drainReader == nil:
		se.consumeLocked(h, discardData)
	}
}

// consumeLocked starts a goroutine that runs consume with a duplicate of the descriptor, until stopDrain closes the duplicate.
func (se *server) consumeLocked(h *storedFD, consume func(*os.File)) {
	fd, err := keeperwire.DuplicateFD(h.fd)
	if err != nil {
		return // this process has no free descriptors: the plugin's writes, or the connections, wait for the next agent
	}
	// O_NONBLOCK belongs to the open file description, which the agent shares: the agent's
	// reads do not block either.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "sink")
	h.drainReader = f
	se.wg.Go(func() { consume(f) })
}

func discardData(f *os.File) {
	buf := make([]byte, 8<<10)
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}

// resetConns resets each connection to a listener until the file is closed.
func resetConns(listener *os.File) {
	acceptUntilClosed(listener, func(fd int) {
		// Without linger, the close sends RST and leaves no connection in the state TIME_WAIT.
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		unix.Close(fd)
	})
}

func stopDrain(h *storedFD) {
	if h.resetTimer != nil {
		h.resetTimer.Stop()
		h.resetTimer = nil
	}
	if h.drainReader != nil {
		h.drainReader.Close()
		h.drainReader = nil
	}
}
