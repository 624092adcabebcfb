package servers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

const (
	defaultPort = "4647" // RPC port for a server address without a port

	// retryTime is how long a call is repeated while the servers have no leader or the connection fails; servers wait as long for a
	// leader themselves.
	retryTime     = 5 * time.Second
	maxRetryPause = retryTime / 16
	// callTimeout limits one try, without the time a server may block. The server may wait for a leader within it.
	callTimeout = 15 * time.Second
	pingTimeout = 5 * time.Second

	minRebalanceDelay = 5 * time.Minute
	// nodesPerSecondAndServer limits how many nodes move to another server.
	nodesPerSecondAndServer = 64
)

// Config configures a Pool.
type Config struct {
	Region string
	// Dial opens a session to the server at an address with a port.
	Dial   func(ctx context.Context, addr string) (*wire.Session, error)
	Logger hclog.Logger
}

// Pool calls the servers of a region. Its methods may be called concurrently.
type Pool struct {
	config Config

	mu          sync.Mutex
	configured  []string // the addresses passed to New
	addrs       []string // the first is used
	failures    int      // consecutive tries no server has answered
	sessions    map[string]*openSession
	methods     wire.Methods
	onSession   func()          // the argument onNewSession of Run; nil before Run
	serveCtx    context.Context // nil before Run
	closed      bool            // Run has ended
	serving     sync.WaitGroup  // each session's Serve
	nodes       int32           // number of nodes in the cluster
	unreachable bool            // no server could decide about the last call
	recovered   chan struct{}   // closed and replaced when the servers answer again
}

// openSession is the session to one server, or the attempt to open it.
type openSession struct {
	ready   chan struct{} // closed when session and err are set
	session *wire.Session
	err     error
}

// New returns a Pool with servers in the given order. An address is a host, or a host with a port.
func New(c Config, addrs []string) *Pool {
	p := &Pool{config: c, sessions: make(map[string]*openSession), recovered: make(chan struct{})}
	for _, addr := range addrs {
		p.configured = append(p.configured, withDefaultPort(addr))
	}
	p.addrs = slices.Clone(p.configured)
	return p
}

// withDefaultPort returns the address with a port. addr is a host, a host with a port, or an IPv6 address.
func withDefaultPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), defaultPort)
}

// Run answers servers' calls with methods, and moves to another server from time to time, until ctx ends. Then it closes all
// sessions and returns when all methods have returned. It must be called once. Calls work before Run, and fail after it.
//
// Run calls onNewSession when a session was opened, and once for those opened before Run: a server can call this node only after
// the node has made a call with its ID on the session. onNewSession must return soon, and may be nil.
func (p *Pool) Run(ctx context.Context, methods wire.Methods, onNewSession func()) {
	if onNewSession == nil {
		onNewSession = func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.mu.Lock()
	p.methods, p.onSession, p.serveCtx = methods, onNewSession, ctx
	for _, s := range p.sessions {
		p.serveWhenReadyLocked(s)
	}
	hasSession := len(p.sessions) > 0
	p.mu.Unlock()
	if hasSession {
		onNewSession()
	}
	for {
		select {
		case <-time.After(p.rebalanceDelay()):
			p.rebalance(ctx)
			continue
		case <-ctx.Done():
		}
		break
	}
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.CloseSessions()
	p.serving.Wait()
}

// CloseSessions closes all sessions, so later calls open new ones, for example with new certificates.
func (p *Pool) CloseSessions() {
	p.mu.Lock()
	sessions := p.sessions
	p.sessions = make(map[string]*openSession)
	p.mu.Unlock()
	for _, s := range sessions {
		go s.closeWhenReady()
	}
}

func (s *openSession) closeWhenReady() {
	<-s.ready
	if s.err == nil {
		s.session.Close()
	}
}

// Addrs returns the addresses of the servers. The first one is in use.
func (p *Pool) Addrs() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.addrs)
}

// SetServers replaces the server list by the one that a server has sent together with the number of nodes. A list with the same
// addresses keeps the order, so a failed server stays behind; an empty list is ignored.
func (p *Pool) SetServers(list []*protocol.Server, nodes int32) {
	addrs := make([]string, 0, len(list))
	for _, server := range list {
		if server != nil && server.RPCAdvertiseAddr != "" {
			addrs = append(addrs, withDefaultPort(server.RPCAdvertiseAddr))
		}
	}
	slices.Sort(addrs)
	addrs = slices.Compact(addrs)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes = nodes
	if len(addrs) == 0 || slices.Equal(addrs, slices.Sorted(slices.Values(p.addrs))) {
		return
	}
	inUse := ""
	if len(p.addrs) > 0 {
		inUse = p.addrs[0]
	}
	rand.Shuffle(len(addrs), func(i, k int) { addrs[i], addrs[k] = addrs[k], addrs[i] })
	if i := slices.Index(addrs, inUse); i > 0 { // the server that has sent the list works
		addrs[0], addrs[i] = addrs[i], addrs[0]
	}
	p.config.Logger.Info("the list of servers has changed", "servers", addrs)
	p.addrs = addrs
}

// Call calls a server method that answers at once. It blocks until a server has answered, for about 30 seconds at most, or until
// ctx ends. A server's error answer is a wire.ServerError. After other errors the method may or may not have been executed.
func (p *Pool) Call(ctx context.Context, method string, request, response any) error {
	return p.CallBlocking(ctx, 0, method, request, response)
}

// CallBlocking calls a method a server may answer after maxBlock. Otherwise it is like Call.
func (p *Pool) CallBlocking(ctx context.Context, maxBlock time.Duration, method string, request, response any) error {
	deadline := time.Now().Add(retryTime)
	for {
		start := time.Now()
		err := p.try(ctx, maxBlock+maxBlock/16+callTimeout, method, request, response)
		if ctx.Err() == nil { // otherwise the caller has ended the call
			p.noteResult(err)
		}
		retryable := IsUnreachable(err) && !errors.Is(err, ErrNoServers)
		// The caller repeats a call that has blocked, because it knows what it waits for.
		if !retryable || ctx.Err() != nil || time.Now().After(deadline) || time.Since(start) > retryTime {
			return err
		}
		if wait.Sleep(ctx, rand.N(maxRetryPause)) != nil {
			return err
		}
	}
}

// try calls the first server once. If the connection fails, or the server has no leader, the next server becomes the first.
func (p *Pool) try(ctx context.Context, timeout time.Duration, method string, request, response any) error {
	callCtx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	addr, s, err := p.sessionOfFirst(callCtx)
	if err == nil {
		err = s.session.Call(callCtx, method, request, response)
	}
	if read, ok := response.(interface{ SetServer(addr string) }); ok {
		read.SetServer(addr)
	}
	switch {
	case !IsUnreachable(err):
		p.mu.Lock()
		p.failures = 0
		p.mu.Unlock()
	case ctx.Err() == nil:
		p.moveToEnd(addr) // its session is replaced if it is closed; the server's streams may still work on it
	}
	return err
}

// sessionOfFirst returns the session to the first server, and opens it if there is none.
func (p *Pool) sessionOfFirst(ctx context.Context) (addr string, s *openSession, err error) {
	p.mu.Lock()
	if len(p.addrs) == 0 {
		p.mu.Unlock()
		return "", nil, ErrNoServers
	}
	addr = p.addrs[0]
	p.mu.Unlock()
	s, err = p.sessionOf(ctx, addr)
	return addr, s, err
}

// sessionOf returns the session to the server at addr, and opens it if there is none.
func (p *Pool) sessionOf(ctx context.Context, addr string) (*openSession, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, wire.ErrSessionClosed
	}
	s := p.sessions[addr]
	if s != nil && s.isClosed() {
		s = nil
	}
	if s == nil {
		s = &openSession{ready: make(chan struct{})}
		p.sessions[addr] = s
		go p.open(context.WithoutCancel(ctx), addr, s)
		p.serveWhenReadyLocked(s)
	}
	p.mu.Unlock()
	select {
	case <-s.ready:
		return s, s.err
	case <-ctx.Done():
		return s, fmt.Errorf("connect to server %s: %w", addr, context.Cause(ctx))
	}
}

// open opens the session s. It does not end with the call that first needs the session, because other calls use it too; Dial's
// timeout limits it.
func (p *Pool) open(ctx context.Context, addr string, s *openSession) {
	s.session, s.err = p.config.Dial(ctx, addr)
	close(s.ready)
	p.mu.Lock()
	onSession := p.onSession
	p.mu.Unlock()
	if s.err == nil && onSession != nil {
		onSession()
	}
}

func (s *openSession) isClosed() bool {
	return wait.IsClosed(s.ready) && (s.err != nil || wait.IsClosed(s.session.Closed()))
}

// serveWhenReadyLocked serves the methods on a session, if Run was called.
func (p *Pool) serveWhenReadyLocked(s *openSession) {
	ctx, methods := p.serveCtx, p.methods
	if ctx == nil {
		return
	}
	p.serving.Go(func() {
		<-s.ready
		if s.err == nil {
			defer s.session.Close()
			s.session.Serve(ctx, methods)
		}
	})
}

// moveToEnd moves a server that has not answered to the end of the list, if it is the first. When no listed server has answered,
// it adds the configured servers: a list of wrong addresses would otherwise separate the node from all servers.
func (p *Pool) moveToEnd(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failures++; p.failures >= len(p.addrs) {
		p.failures = 0
		for _, configured := range p.configured {
			if !slices.Contains(p.addrs, configured) {
				p.addrs = append(slices.Clone(p.addrs), configured)
			}
		}
	}
	if len(p.addrs) > 1 && p.addrs[0] == addr {
		p.addrs = append(slices.Clone(p.addrs[1:]), addr)
	}
}

// noteResult wakes WaitRetry when the servers answer a call after they could not be reached. A refusal is an answer.
func (p *Pool) noteResult(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wasUnreachable := p.unreachable
	p.unreachable = IsUnreachable(err)
	if wasUnreachable && !p.unreachable {
		close(p.recovered)
		p.recovered = make(chan struct{})
	}
}

// WaitRetry blocks before a failed call is repeated: for a random part of max, at least half of it, or until ctx ends. It returns
// earlier, but not within a second, when the servers answer another call after they could not be reached. It returns ctx's cause
// if ctx has ended.
func (p *Pool) WaitRetry(ctx context.Context, max time.Duration) error {
	p.mu.Lock()
	recovered := p.recovered
	p.mu.Unlock()
	delay := max/2 + rand.N(max/2+1)
	early := min(delay, time.Second)
	if err := wait.Sleep(ctx, early); err != nil {
		return err
	}
	timer := time.NewTimer(delay - early)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-recovered:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rebalanceDelay returns the time until the next move to another server, so long that a large cluster's nodes do not move at the
// same time.
func (p *Pool) rebalanceDelay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	delay := minRebalanceDelay
	if servers := len(p.addrs); servers > 0 {
		delay = max(delay, time.Duration(p.nodes)*time.Second/time.Duration(nodesPerSecondAndServer*servers))
	}
	return delay + rand.N(delay)
}

// rebalance moves to a random server that answers, so that the nodes spread over added or returned servers. It closes sessions
// without streams to other servers.
func (p *Pool) rebalance(ctx context.Context) {
	candidates := p.Addrs()
	if len(candidates) < 2 {
		return
	}
	rand.Shuffle(len(candidates), func(i, k int) { candidates[i], candidates[k] = candidates[k], candidates[i] })
	for _, addr := range candidates {
		if p.ping(ctx, addr) == nil {
			p.makeFirst(addr)
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, s := range p.sessions {
		if addr != p.addrs[0] && wait.IsClosed(s.ready) && (s.err != nil || s.session.StreamCount() == 0) {
			delete(p.sessions, addr)
			go s.closeWhenReady()
		}
	}
}

// ping calls the server at addr.
func (p *Pool) ping(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	s, err := p.sessionOf(ctx, addr)
	if err != nil {
		return err
	}
	request := protocol.PingRequest{ReadOptions: protocol.ReadOptions{Region: p.config.Region}}
	return s.session.Call(ctx, protocol.MethodPing, &request, &protocol.PingResponse{})
}

// makeFirst makes a server the one in use.
func (p *Pool) makeFirst(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.addrs, addr); i > 0 {
		p.addrs = slices.Concat([]string{addr}, p.addrs[:i], p.addrs[i+1:])
	}
}
