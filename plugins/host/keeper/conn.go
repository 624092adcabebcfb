package keeper

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// acceptConns serves connections until the listener is closed.
func (k *server) acceptConns(listener *net.UnixListener) {
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Accept can fail because the process has no free descriptors. The keeper must
			// not exit then: it would lose its children and the stored descriptors.
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if osprocess.CheckPeerUser(conn) != nil {
			conn.Close()
			continue
		}
		c := &serverConn{server: k, conn: framing.NewConn(conn, messageLimits), waitRequests: map[uint64]osprocess.ID{}, killOnDisconnect: map[osprocess.ID]bool{}, responseReady: make(chan struct{}, 1)}
		k.mu.Lock()
		k.conns[c] = true
		k.mu.Unlock()
		k.wg.Go(c.serveRequests)
	}
}

// serverConn is the connection of one client.
type serverConn struct {
	server        *server
	conn          *framing.Conn
	client        framing.Hello // client: used only by serveRequests
	responseReady chan struct{} // responseReady: capacity 1; signals that responseQueue is not empty

	// killOnDisconnect: children that are killed when the connection ends; used only by
	// serveRequests.
	killOnDisconnect map[osprocess.ID]bool

	// guarded by server.mu
	isAgent       bool
	disconnected  bool
	waitRequests  map[uint64]osprocess.ID
	responseQueue []queuedResponse
}

type queuedResponse struct {
	msg *response
	fds []int // owned by the answer
}

// queueResponse queues a response for writeResponses, so that the caller does not block if
// the client does not read. The caller holds server.mu.
func (c *serverConn) queueResponse(msg *response, fds []int) {
	if c.disconnected {
		framing.CloseAll(fds)
		return
	}
	c.responseQueue = append(c.responseQueue, queuedResponse{msg, fds})
	select {
	case c.responseReady <- struct{}{}:
	default:
	}
}

// serveRequests reads requests until the connection ends.
func (c *serverConn) serveRequests() {
	k := c.server
	var responseWriter sync.WaitGroup
	stop := make(chan struct{})
	responseWriter.Go(func() { c.writeResponses(stop) })

	for err := c.receiveHello(); err == nil; {
		var req request
		var fds []int
		fds, err = c.conn.Receive(&req)
		if errors.Is(err, framing.ErrNoFreeDescriptors) {
			// The connection stays open: otherwise the client would repeat the request on
			// new connections forever.
			k.mu.Lock()
			c.queueResponse(&response{ID: req.ID, Error: "keeper: " + err.Error()}, nil)
			k.mu.Unlock()
			err = nil
		} else if err == nil {
			c.handleRequest(&req, fds)
		}
	}

	for p := range c.killOnDisconnect {
		_ = p.Signal(unix.SIGKILL) // Signal fails only if the process has ended
	}
	c.conn.Close()
	close(stop)
	responseWriter.Wait()
	k.mu.Lock()
	c.disconnected = true
	for _, a := range c.responseQueue {
		framing.CloseAll(a.fds)
	}
	for id, p := range c.waitRequests {
		k.removeWaiterLocked(c, id, p)
	}
	delete(k.conns, c)
	if c.isAgent {
		k.agents.count--
		if k.agents.count == 0 {
			k.agents.zeroSince = time.Now()
			k.startDrainingLocked()
		}
	}
	k.mu.Unlock()
	k.wakeUp()
}

// writeResponses sends the queued responses until stop is closed.
func (c *serverConn) writeResponses(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-c.responseReady:
		}
		c.server.mu.Lock()
		queue := c.responseQueue
		c.responseQueue = nil
		c.server.mu.Unlock()
		for _, a := range queue {
			_ = c.conn.Send(a.msg, a.fds...) // Send closes the connection if it fails
			framing.CloseAll(a.fds)
		}
	}
}

// handleRequest executes one request and queues its response. It closes fds or keeps them.
func (c *serverConn) handleRequest(req *request, fds []int) {
	k := c.server
	k.trimmer.NotifyBusy()
	var resp *response
	rejected := c.checkOp(req.Op)
	switch {
	case rejected != nil:
		resp = &response{Error: rejected.Error()}
	case req.Op == opSpawn:
		resp = k.handleSpawn(req.Spawn, fds)
		if resp.err() == nil && req.Spawn.KillOnDisconnect {
			c.killOnDisconnect[resp.Process] = true
		}
	case req.Op == opKeepAfterDisconnect:
		delete(c.killOnDisconnect, req.Process)
		resp = &response{}
	case req.Op == opListParentProcesses:
		resp = &response{ParentProcesses: k.processesWithTasks()}
	case req.Op == opReplaceProgram:
		resp = errorResponse(k.execNewProgram(req.Args, fds))
	default:
		c.handleRequestUnderLock(req, fds)
		return
	}
	framing.CloseAll(fds)
	resp.ID = req.ID
	k.mu.Lock()
	defer k.mu.Unlock()
	c.queueResponse(resp, nil)
}

// checkOp returns an error if the client may not make a request: most operations are reserved for
// agents, and a client of another version may use the stable messages only.
func (c *serverConn) checkOp(o op) error {
	version := c.server.hello.Version
	switch {
	case o == opWait || o == opCancelWait:
		return nil
	case c.client.Role != framing.RoleAgent:
		return fmt.Errorf("operation %q is the agent's", o)
	case o != opReplaceProgram && c.client.Version != version:
		return fmt.Errorf("operation %q of version %d: the keeper has version %d", o, c.client.Version, version)
	}
	return nil
}

// errorResponse returns the response to a request that has failed.
func errorResponse(err error) *response {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return &response{Error: strings.TrimSuffix(err.Error(), ": "+errno.Error()), Errno: int(errno)}
	}
	return &response{Error: err.Error()}
}

// handleRequestUnderLock executes a request whose operation needs server.mu.
func (c *serverConn) handleRequestUnderLock(req *request, fds []int) {
	k := c.server
	if req.Op == opWait {
		// forkMu is held because a child that is being reaped is no longer in /proc, but
		// its status is not recorded yet.
		k.forkMu.Lock()
		defer k.forkMu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &response{}
	var out []int
	switch req.Op {
	case opSetEphemeral:
		k.ephemeral.Store(true)
	case opEndWithoutTasks:
		k.agents.endWithoutTasks = true
	case opWait:
		resp = k.handleWaitLocked(c, req.ID, req.Process)
	case opCancelWait:
		if p, ok := c.waitRequests[req.ID]; ok {
			k.removeWaiterLocked(c, req.ID, p)
		}
		resp = nil
	case opStoreFD:
		if len(req.Keys) != len(fds) || len(req.DrainWithoutAgent) > len(fds) {
			resp.Error = fmt.Sprintf("store: %d keys with %d descriptors", len(req.Keys), len(fds))
			break
		}
		for i, key := range req.Keys {
			k.storeFDLocked(key, fds[i], i < len(req.DrainWithoutAgent) && req.DrainWithoutAgent[i])
		}
		fds = nil
	case opGetFDs:
		out, resp = k.getFDsLocked(req)
	case opGetProgram:
		out, resp = k.openProgramLocked(req.Process)
	case opRemoveFD:
		for _, key := range req.Keys {
			k.removeFDLocked(key)
		}
	case opAdoptProcesses:
		k.managedProcs = req.ManagedProcs
	case opListFDs:
		resp.Ephemeral = k.ephemeral.Load()
		resp.Keys = slices.Sorted(maps.Keys(k.storedFDs))
		for _, key := range resp.Keys {
			resp.DrainWithoutAgent = append(resp.DrainWithoutAgent, k.storedFDs[key].drainWithoutAgent)
		}
	default:
		resp.Error = fmt.Sprintf("operation %q is unknown", req.Op)
	}
	framing.CloseAll(fds)
	if resp != nil { // resp is nil if the operation has no response, or if handleWaitLocked sends it later
		resp.ID = req.ID
		c.queueResponse(resp, out)
	}
}

// receiveHello receives the hello message of the client and sends the keeper's. The keeper stops
// draining the output of the plugins before an agent gets its hello message.
func (c *serverConn) receiveHello() error {
	fds, err := c.conn.Receive(&c.client)
	framing.CloseAll(fds)
	if err != nil {
		return err
	}
	k := c.server
	k.mu.Lock()
	if c.client.Role == framing.RoleAgent {
		c.isAgent = true
		k.agents.count++
		k.agents.everConnected = true
		k.agents.endWithoutTasks = false
		k.stopDrainingLocked()
	}
	k.mu.Unlock()
	return c.conn.Send(k.hello)
}
