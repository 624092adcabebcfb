package keeper

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// storedFD is one descriptor that the keeper holds.
type storedFD struct {
	fd    int
	drain bool     // the keeper reads and discards the data while no agent is connected
	sink  *os.File // open while the keeper drains fd; nil otherwise
}

func (k *server) holdLocked(key string, fd int, drain bool) {
	k.dropLocked(key)
	h := &storedFD{fd: fd, drain: drain}
	k.held[key] = h
	if k.agents.connected == 0 {
		k.startDrainLocked(h)
	}
}

func (k *server) dropLocked(key string) {
	h := k.held[key]
	if h == nil {
		return
	}
	stopDrain(h)
	unix.Close(h.fd)
	delete(k.held, key)
}

// takeLocked returns duplicates of the descriptors under all requested keys, or none.
func (k *server) takeLocked(req *request) ([]int, *response) {
	resp := &response{}
	if len(req.ListFDs) > maxFiles {
		resp.Error = fmt.Sprintf("take of %d descriptors at once is over the limit of %d", len(req.ListFDs), maxFiles)
		return nil, resp
	}
	var fds []int
	for _, key := range req.ListFDs {
		h := k.held[key]
		if h == nil {
			closeAll(fds)
			resp.Code = codeNotHeld
			return nil, resp
		}
		fd, err := duplicateFD(h.fd)
		if err != nil {
			closeAll(fds)
			resp.Error = fmt.Sprintf("take %q: %v", key, err)
			return nil, resp
		}
		fds = append(fds, fd)
	}
	return fds, resp
}

// inUseLocked reports whether the other end of any held descriptor is open.
func (k *server) inUseLocked() bool {
	for _, h := range k.held {
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

// drainLocked starts to discard the output of the plugins, because no agent is connected.
func (k *server) drainLocked() {
	for _, h := range k.held {
		k.startDrainLocked(h)
	}
}

// undrainLocked stops draining, because an agent has connected.
func (k *server) undrainLocked() {
	for _, h := range k.held {
		stopDrain(h)
	}
}

func (k *server) startDrainLocked(h *storedFD) {
	if !h.drain || h.sink != nil {
		return
	}
	fd, err := duplicateFD(h.fd)
	if err != nil {
		return // out of descriptors: the plugin blocks until the next agent reads
	}
	// The flag belongs to the open file description, so it also applies to the agent, which
	// reads without blocking as well.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "sink")
	h.sink = f
	k.wg.Go(func() {
		buf := make([]byte, 8<<10)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
		}
	})
}

func stopDrain(h *storedFD) {
	if h.sink != nil {
		h.sink.Close()
		h.sink = nil
	}
}
