package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// accept serves connections until the listener is closed.
func (k *server) accept(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// The process is out of descriptors, for example. Children and held descriptors
			// matter more than a new connection.
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if process.SameUser(conn) != nil {
			conn.Close()
			continue
		}
		c := &serverConn{server: k, wire: &wire{conn: conn}, waits: map[uint64]process.ID{}, provisional: map[process.ID]bool{}, ready: make(chan struct{}, 1)}
		k.mu.Lock()
		k.conns[c] = true
		k.mu.Unlock()
		k.wg.Go(c.serve)
	}
}

// serverConn is the connection of one client.
type serverConn struct {
	server *server
	wire   *wire
	ready  chan struct{} // capacity 1; signals that queue is not empty

	provisional map[process.ID]bool // children that are killed when the connection ends; used only by serve

	// guarded by server.mu
	agent bool
	gone  bool
	waits map[uint64]process.ID
	queue []answer
}

type answer struct {
	msg *response
	fds []int // owned by the answer
}

// answer queues a response, so that no goroutine blocks on a client that does not read.
// server.mu is held.
func (c *serverConn) answer(msg *response, fds []int) {
	if c.gone {
		closeAll(fds)
		return
	}
	c.queue = append(c.queue, answer{msg, fds})
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// serve reads requests until the connection ends.
func (c *serverConn) serve() {
	k := c.server
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() { c.write(stop) })

	for {
		var req request
		fds, err := c.wire.receive(&req)
		if errors.Is(err, errDescriptors) {
			// If the connection ended, the client would repeat the request on a new one
			// forever.
			k.mu.Lock()
			c.answer(&response{ID: req.ID, Error: "keeper: " + err.Error()}, nil)
			k.mu.Unlock()
			continue
		}
		if err != nil {
			break
		}
		c.handle(&req, fds)
	}

	for p := range c.provisional {
		_ = p.Signal(unix.SIGKILL) // an error means that the process has ended
	}
	c.wire.conn.Close()
	close(stop)
	writer.Wait()
	k.mu.Lock()
	c.gone = true
	for _, a := range c.queue {
		closeAll(a.fds)
	}
	for id, p := range c.waits {
		k.unwaitLocked(c, id, p)
	}
	delete(k.conns, c)
	if c.agent {
		k.agents.connected--
		if k.agents.connected == 0 {
			k.agents.goneAt = time.Now()
			k.drainLocked()
		}
	}
	k.mu.Unlock()
	k.wakeUp()
}

// write sends queued answers until stop is closed.
func (c *serverConn) write(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-c.ready:
		}
		c.server.mu.Lock()
		queue := c.queue
		c.queue = nil
		c.server.mu.Unlock()
		for _, a := range queue {
			_ = c.wire.send(a.msg, a.fds...) // send closes the connection on failure
			closeAll(a.fds)
		}
	}
}

// handle executes one request and answers it. It owns fds.
func (c *serverConn) handle(req *request, fds []int) {
	k := c.server
	k.trim.Busy()
	var resp *response
	switch {
	case !c.may(req.Op):
		resp = &response{Error: fmt.Sprintf("operation %q is the agent's", req.Op)}
	case req.Op == opSpawn:
		resp = k.spawn(req.Spawn, fds)
		if resp.err() == nil && req.Spawn.Provisional {
			c.provisional[resp.Process] = true
		}
	case req.Op == opConfirm:
		delete(c.provisional, req.Process)
		resp = &response{}
	case req.Op == opParents:
		resp = &response{Parents: k.parents()}
	case req.Op == opReplace:
		resp = &response{Error: k.replace(req.Args, fds).Error()}
	case req.Op == opMove:
		resp = &response{}
		if err := k.moveTo(req.Dir, fds); err != nil {
			resp.Error = err.Error()
		}
		fds = nil
	default:
		c.handleLocking(req, fds)
		return
	}
	closeAll(fds)
	resp.ID = req.ID
	k.mu.Lock()
	defer k.mu.Unlock()
	c.answer(resp, nil)
}

// may reports whether the client may make a request. Most operations are reserved for agents.
func (c *serverConn) may(o op) bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.agent || o == opHello || o == opWait || o == opCancel
}

// handleLocking is handle for the operations that hold server.mu.
func (c *serverConn) handleLocking(req *request, fds []int) {
	k := c.server
	if req.Op == opWait {
		// A child that is being reaped is no longer in /proc, and its status is not yet
		// recorded.
		k.forkMu.Lock()
		defer k.forkMu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &response{}
	var out []int
	switch req.Op {
	case opHello:
		c.helloLocked(req.Agent)
		resp.Process, resp.Ephemeral = k.self, k.ephemeral.Load()
	case opEphemeral:
		k.ephemeral.Store(true)
	case opWait:
		resp = k.waitLocked(c, req.ID, req.Process)
	case opCancel:
		if p, ok := c.waits[req.ID]; ok {
			k.unwaitLocked(c, req.ID, p)
		}
		resp = nil
	case opHold:
		if len(req.ListFDs) != len(fds) || len(req.Drain) > len(fds) {
			resp.Error = fmt.Sprintf("hold: %d keys with %d descriptors", len(req.ListFDs), len(fds))
			break
		}
		for i, key := range req.ListFDs {
			k.holdLocked(key, fds[i], i < len(req.Drain) && req.Drain[i])
		}
		fds = nil
	case opTake:
		out, resp = k.takeLocked(req)
	case opDrop:
		for _, key := range req.ListFDs {
			k.dropLocked(key)
		}
	case opAdopt:
		k.managedProcs = req.ManagedProcs
	case opKeys:
		resp.ListFDs = slices.Sorted(maps.Keys(k.held))
		for _, key := range resp.ListFDs {
			resp.Drain = append(resp.Drain, k.held[key].drain)
		}
	default:
		resp.Error = fmt.Sprintf("operation %q is unknown", req.Op)
	}
	closeAll(fds)
	if resp != nil { // nil: the operation has no response, or waitLocked sends it later
		resp.ID = req.ID
		c.answer(resp, out)
	}
}

// helloLocked records whether the client is an agent.
func (c *serverConn) helloLocked(agent bool) {
	if agent && !c.agent {
		c.agent = true
		c.server.agents.connected++
		c.server.agents.joined = true
		c.server.undrainLocked()
	}
}
