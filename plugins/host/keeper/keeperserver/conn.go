package keeperserver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/framing"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// acceptConns serves connections until the listener is closed.
func (se *server) acceptConns(listener *os.File) {
	acceptUntilClosed(listener, func(fd int) {
		if osprocess.CheckPeerUserFD(fd) != nil {
			unix.Close(fd)
			return
		}
		conn := framing.NewConn(os.NewFile(uintptr(fd), "client"), keeperwire.MessageLimits)
		c := &serverConn{server: se, conn: conn, procByWaitRequestID: map[uint64]osprocess.ID{}, killOnDisconnect: map[osprocess.ID]bool{}, responseReady: make(chan struct{}, 1)}
		se.mu.Lock()
		stopped := se.conns == nil
		if !stopped {
			se.conns[c] = true
		}
		se.mu.Unlock()
		if stopped {
			conn.Close() // the connection was accepted before shutDown has closed the listener
			return
		}
		se.wg.Go(c.serveRequests)
	})
}

// acceptUntilClosed calls handle with the descriptor of each connection until the listener is closed. handle owns the descriptor.
func acceptUntilClosed(listener *os.File, handle func(fd int)) {
	for {
		fd, acceptErr, err := accept(listener)
		if err != nil {
			return
		}
		if acceptErr != nil {
			// Accept can fail because the process has no free descriptors. The keeper must
			// not exit then: it would lose its children and the stored descriptors.
			time.Sleep(exhaustedRetryDelay)
			continue
		}
		handle(fd)
	}
}

// accept waits for a connection and returns its descriptor, which does not block, or the error of accept4(2). err is an error of
// the listener, which is closed.
func accept(listener *os.File) (fd int, acceptErr, err error) {
	raw, err := listener.SyscallConn()
	if err != nil {
		return -1, nil, err
	}
	err = raw.Read(func(listenerFD uintptr) (done bool) {
		for acceptErr = unix.EINTR; errors.Is(acceptErr, unix.EINTR); {
			fd, _, acceptErr = unix.Accept4(int(listenerFD), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}
		return !errors.Is(acceptErr, unix.EAGAIN)
	})
	return fd, acceptErr, err
}

// serverConn is the connection of one client.
type serverConn struct {
	server        *server
	conn          *framing.Conn
	clientHello   framing.Hello // hello message of the client; used only by serveRequests
	responseReady chan struct{} // capacity 1; a value means that responseQueue is not empty

	// killOnDisconnect has the children that are killed with their sessions when the connection ends; used only by
	// serveRequests.
	killOnDisconnect map[osprocess.ID]bool

	// The following fields are guarded by server.mu.
	isAgent             bool
	disconnected        bool
	procByWaitRequestID map[uint64]osprocess.ID
	responseQueue       []queuedResponse
}

type queuedResponse struct {
	response *keeperwire.Response
	fds      []int // descriptors to send; writeResponses closes them
}

// queueResponse queues a response, with descriptors that it takes over, for writeResponses, so that the caller does not
// block if the client does not read. The caller holds server.mu.
func (c *serverConn) queueResponse(msg *keeperwire.Response, fds []int) {
	if c.disconnected {
		framing.CloseAll(fds)
		return
	}
	c.responseQueue = append(c.responseQueue, queuedResponse{msg, fds})
	wait.Notify(c.responseReady)
}

// serveRequests reads requests until the connection ends.
func (c *serverConn) serveRequests() {
	k := c.server
	var responseWriter sync.WaitGroup
	stop := make(chan struct{})
	responseWriter.Go(func() { c.writeResponses(stop) })

	for err := c.exchangeHelloAndRegisterAgent(); err == nil; {
		var req keeperwire.Request
		var fds []int
		fds, err = c.conn.Receive(&req)
		if errors.Is(err, framing.ErrNoFreeDescriptors) {
			// The connection stays open: otherwise the client would repeat the request on
			// new connections forever.
			resp := responseFromErrorOrNil(fmt.Errorf("keeper: %w", err))
			resp.ID = req.ID
			k.mu.Lock()
			c.queueResponse(resp, nil)
			k.mu.Unlock()
			err = nil
		} else if err == nil {
			c.handleRequest(&req, fds)
		}
	}

	for p := range c.killOnDisconnect {
		// After a launch that failed earlier, the client has killed the session, and the kernel may have reused its id.
		if now, err := osprocess.LookupID(p.PID); err == nil && now == p {
			p.KillSession() // a script has started the program of the plugin in the same session
		}
	}
	c.conn.Close()
	close(stop)
	responseWriter.Wait()
	k.mu.Lock()
	c.disconnected = true
	for _, a := range c.responseQueue {
		framing.CloseAll(a.fds)
	}
	for id, p := range c.procByWaitRequestID {
		k.removeWaiterLocked(c, id, p)
	}
	delete(k.conns, c)
	if c.isAgent {
		k.agentConns.connectedCount--
		if k.agentConns.connectedCount == 0 {
			k.agentConns.lastDisconnectAt = time.Now()
			k.startAllDrainsLocked()
		}
	}
	k.mu.Unlock()
	k.wakeRunLoop()
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
			_ = c.conn.Send(a.response, a.fds...) // Send closes the connection if it fails
			framing.CloseAll(a.fds)
		}
	}
}

// handleRequest executes one request and queues its response. It takes over the descriptors fds of the request.
func (c *serverConn) handleRequest(req *keeperwire.Request, fds []int) {
	k := c.server
	k.memoryTrimmer.NotifyBusy()
	var resp *keeperwire.Response
	rejected := c.checkOpAllowed(req.Op)
	switch {
	case rejected != nil:
		resp = &keeperwire.Response{Error: rejected.Error()}
	case req.Op == keeperwire.OpSpawn:
		resp = k.handleSpawn(req.Spawn, fds)
		if resp.Err() == nil && req.Spawn.KillOnDisconnect {
			c.killOnDisconnect[resp.Process] = true
		}
	case req.Op == keeperwire.OpKeepAfterDisconnect:
		delete(c.killOnDisconnect, req.Process)
		resp = &keeperwire.Response{}
	case req.Op == keeperwire.OpListParentProcesses:
		parents, err := k.processesThatMayHaveTasks()
		if resp = responseFromErrorOrNil(err); err == nil {
			resp.ParentProcesses = parents
		}
	case req.Op == keeperwire.OpListEndedSessionLeaders:
		resp = k.endedSessionLeaders(req.StartTime)
	case req.Op == keeperwire.OpReplaceProgram:
		resp = responseFromErrorOrNil(k.execNewProgram(req.Args, fds))
	default:
		c.lockAndHandleRequest(req, fds)
		return
	}
	framing.CloseAll(fds)
	resp.ID = req.ID
	k.mu.Lock()
	defer k.mu.Unlock()
	c.queueResponse(resp, nil)
}

// checkOpAllowed returns an error if the client may not request an operation: most operations are reserved for
// agents, and a client of another protocol version may send the stable messages only.
func (c *serverConn) checkOpAllowed(o keeperwire.Op) error {
	version := c.server.hello.Version
	switch {
	case o == keeperwire.OpWait || o == keeperwire.OpCancelWait || o == keeperwire.OpListEndedSessionLeaders:
		return nil
	case c.clientHello.Role != framing.RoleAgent:
		return fmt.Errorf("operation %q is the agent's", o)
	case o != keeperwire.OpReplaceProgram && c.clientHello.Version != version:
		return fmt.Errorf("operation %q of version %d: the keeper has version %d", o, c.clientHello.Version, version)
	}
	return nil
}

// responseFromErrorOrNil returns the response to a request that has failed with err, or has succeeded if err is nil.
func responseFromErrorOrNil(err error) *keeperwire.Response {
	if err == nil {
		return &keeperwire.Response{}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return &keeperwire.Response{Error: strings.TrimSuffix(err.Error(), ": "+errno.Error()), Errno: int(errno)}
	}
	return &keeperwire.Response{Error: err.Error()}
}

// lockAndHandleRequest executes a request whose operation needs server.mu.
func (c *serverConn) lockAndHandleRequest(req *keeperwire.Request, fds []int) {
	k := c.server
	if req.Op == keeperwire.OpWait {
		// forkMu is held because a child that is being reaped is no longer in /proc, but
		// its status is not recorded yet.
		k.forkMu.Lock()
		defer k.forkMu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := &keeperwire.Response{}
	var out []int
	switch req.Op {
	case keeperwire.OpSetEphemeral:
		k.ephemeral.Store(true)
	case keeperwire.OpEndWithoutTasks:
		k.agentConns.exitWhenNoTasks = true
	case keeperwire.OpWait:
		resp = k.handleWaitLocked(c, req.ID, req.Process)
	case keeperwire.OpCancelWait:
		if p, ok := c.procByWaitRequestID[req.ID]; ok {
			k.removeWaiterLocked(c, req.ID, p)
		}
		resp = nil
	case keeperwire.OpStoreFD:
		if len(req.Keys) != len(fds) || len(req.DrainWithoutAgent) > len(fds) {
			resp.Error = fmt.Sprintf("store: %d keys with %d descriptors", len(req.Keys), len(fds))
			break
		}
		for i, key := range req.Keys {
			k.storeFDLocked(key, fds[i], i < len(req.DrainWithoutAgent) && req.DrainWithoutAgent[i])
		}
		fds = nil
	case keeperwire.OpGetFDs:
		out, resp = k.duplicateStoredFDsLocked(req)
	case keeperwire.OpGetProgram:
		out, resp = k.openExecutableLocked(req.Process)
	case keeperwire.OpRemoveFD:
		for _, key := range req.Keys {
			k.removeFDLocked(key)
		}
	case keeperwire.OpAdoptProcesses:
		k.adoptedProcs = req.ManagedProcs
	case keeperwire.OpListFDs:
		resp.Ephemeral = k.ephemeral.Load()
		resp.Keys = slices.Sorted(maps.Keys(k.storedFDByKey))
		for _, key := range resp.Keys {
			resp.DrainWithoutAgent = append(resp.DrainWithoutAgent, k.storedFDByKey[key].drainWithoutAgent)
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

// exchangeHelloAndRegisterAgent receives the hello message of the client and sends that of the keeper. If the client is
// an agent, the keeper first stops to drain the output of the plugins, which the agent reads from then on.
func (c *serverConn) exchangeHelloAndRegisterAgent() error {
	fds, err := c.conn.Receive(&c.clientHello)
	framing.CloseAll(fds)
	if err != nil {
		return err
	}
	k := c.server
	k.mu.Lock()
	if c.clientHello.Role == framing.RoleAgent {
		c.isAgent = true
		k.agentConns.connectedCount++
		k.agentConns.everConnected = true
		k.agentConns.exitWhenNoTasks = false
		k.stopAllDrainsLocked()
	}
	k.mu.Unlock()
	return c.conn.Send(k.hello)
}
