package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/hoststats"
	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/agent/audit"
	"github.com/nomad-lite/nomad-lite/runtime/agent/connlimit"
	"github.com/nomad-lite/nomad-lite/runtime/agent/ui"
	"github.com/nomad-lite/nomad-lite/runtime/explain/conditions"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/taskapi"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/accesscontrol"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
	"github.com/nomad-lite/nomad-lite/runtime/store/variables"
)

// VolumeManager manages dynamic host volumes. volumes.Manager implements it.
type VolumeManager interface {
	CreateOrChangeVolume(context.Context, *api.HostVolume) (*api.HostVolume, error)
	RegisterOrChangeVolume(context.Context, *api.HostVolume) (*api.HostVolume, error)
	DeleteUnusedVolume(ctx context.Context, namespace, id string, force bool) error
	DeleteClaim(ctx context.Context, namespace, id string) error
}

// AgentFuncs are functions of the agent for routes about the agent itself. Each may be nil.
type AgentFuncs struct {
	// ConfigWithoutSecrets returns the configuration without secrets, because all clients may read the result.
	ConfigWithoutSecrets func() map[string]any
	// Reload reloads the configuration.
	Reload func() error
	// WriteSnapshot writes a snapshot of the state into a file, and returns the file, which the caller closes. It is nil
	// if the state is not kept.
	WriteSnapshot func(ctx context.Context, omitKeys bool) (*os.File, error)
	// DescribePlugins returns a description of the plugins without secrets, as a value for the JSON of the reply.
	// PluginsChanged returns a channel that is closed when the description changes; it is nil only if DescribePlugins is.
	DescribePlugins func() any
	PluginsChanged  func() <-chan struct{}
	// RestartPlugin shuts down the process of the plugin with this file name, and starts the plugin again. It blocks until
	// the process has exited. The error is supervisor.ErrNoPlugin if there is no such plugin.
	RestartPlugin func(ctx context.Context, name string) error
}

// ConditionReporter returns the conditions of the agent and its machine. *conditions.Tracker implements it.
type ConditionReporter interface{ Report() conditions.Report }

// OptionalRoutes selects routes that the configuration of an agent enables or disables.
type OptionalRoutes struct {
	EnableDebug    bool // profiles and host data are served
	DisableWebPage bool // requests for the web page have the status 404
	WebPageLabel   ui.Label
	// DisableEventStream rejects requests for the event stream.
	DisableEventStream bool
}

// Config configures an API. It is large because the routes reach all parts of an agent.
type Config struct {
	Store        *store.Store
	Scheduler    *scheduler.Scheduler
	Allocs       Allocs
	Files        AllocFiles
	LogCollector *logs.CollectorClient // reads the output of tasks
	Plugins      JobPlugins
	Metadata     Metadata
	Volumes      VolumeManager
	Host         fingerprint.Host // properties of the machine
	// HostStats returns the machine's resource usage, DeviceStats all devices' usage. DeviceStats may block until device plugins reply.
	HostStats     func(context.Context) hoststats.Stats
	DeviceStats   func(context.Context) []*api.DeviceGroupStats
	JobParser     jobParser
	Metrics       metricsSource
	History       usageHistory // nil if no usage is recorded
	NodeID        string
	Region        string
	JobLimits     model.JobLimits
	Search        SearchLimits
	AdvertiseAddr string // host:port that other programs use to reach the node
	Conditions    ConditionReporter
	AgentFuncs    AgentFuncs
	// MonitoredLog is the logger whose lines the monitor streams; nil disables the monitor.
	MonitoredLog   hclog.InterceptLogger
	Secrets        *redact.Values // removed from the lines of the monitor; may be nil
	OptionalRoutes OptionalRoutes
	// DisableRemoteExec rejects all commands and actions in tasks.
	DisableRemoteExec bool
	// NomadAPIVersion is the Nomad version whose API is implemented.
	NomadAPIVersion string

	// OperatorToken is the secret that a client must send, except over a unix socket or with a
	// certificate. An empty token allows all clients.
	OperatorToken Secret
	// ReadOnlyToken permits the routes in [readOnlyRoutes] if OperatorToken is set; an empty token permits
	// nothing.
	ReadOnlyToken Secret
	// AccessControl decides about all requests if it is not nil. There are then no OperatorToken and no ReadOnlyToken.
	AccessControl *accesscontrol.Control
	// AuditLog records all requests to paths below /v1; it may be nil.
	AuditLog *audit.Log
	// Cluster is nil if the agent is not a node of a cluster.
	Cluster *Cluster
	// Identities authenticates tasks by the tokens of their identities; nil authenticates none.
	Identities *identity.Issuer
	// TLSHandshakeTimeout limits a TLS handshake; 0 means five seconds.
	TLSHandshakeTimeout time.Duration
	// AcceptedHostNames are the accepted host names, besides localhost and any IP address.
	AcceptedHostNames []string
	// ReplyHeaders are added to all replies.
	ReplyHeaders map[string]string

	Logger hclog.Logger
}

// API serves the HTTP API.
type API struct {
	config       Config
	access       *accessPolicy
	routes       []route
	logger       hclog.Logger
	variables    *variables.Variables
	bodyBudget   sharedMemoryBudget
	listCache    listCache
	execSessions execSessionGroup
	stopTimeout  time.Duration // how long Serve waits for requests that do not end
}

// New returns an API that does not listen yet.
func New(c Config) *API {
	logger := c.Logger.Named("http")
	if c.History == nil {
		c.History = noHistory{}
	}
	a := &API{
		config: c, access: &accessPolicy{c.OperatorToken, c.ReadOnlyToken, c.AcceptedHostNames, c.Identities, c.Cluster, c.Store, c.AccessControl}, logger: logger, variables: variables.New(c.Store, logger),
		stopTimeout: stopTimeout,
	}
	a.bodyBudget.freeBytes.Store(maxBodyMemory)
	a.routes = a.newRoutes()
	return a
}

// Timeouts and size limits of a connection. The total time of a blocking reply is not limited, but the time
// of each write is.
const (
	headerTimeout      = 15 * time.Second // a loaded machine needs seconds to read the headers of hundreds of simultaneous clients
	bodyTimeout        = time.Minute
	discardBodyTimeout = time.Second // how long the server reads a body that it discards
	writeTimeout       = time.Minute
	handshakeTimeout   = 5 * time.Second // timeout of the TLS handshake if Config.TLSHandshakeTimeout is 0
	idleTimeout        = 2 * time.Minute
	maxHeaderBytes     = 16 << 10
	maxBodyBytes       = 1 << 20
	maxJobBytes        = 16 << 20
	stopTimeout        = time.Second
)

// http1Protocol returns HTTP/1.1, which Nomad's clients use and websockets need.
func http1Protocol() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// unixSocketContextKey marks the context of a request over the unix socket of the agent, authorizedContextKey that of a
// request to the handler of HandlerWithAllRights. connContextKey is the context
// key of a request's *connlimit.Conn, if its connection is counted.
type (
	unixSocketContextKey struct{}
	authorizedContextKey struct{}
	connContextKey       struct{}
)

// unixSocketPeer is the value of unixSocketContextKey: the user of the process at the other end.
type unixSocketPeer struct {
	uid     uint32
	isKnown bool
}

// Serve serves the listeners until ctx ends, and closes them. It replies to blocking requests
// before it returns.
func (a *API) Serve(ctx context.Context, listeners ...net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	handshake := cmp.Or(a.config.TLSHandshakeTimeout, handshakeTimeout)
	server := &http.Server{
		Handler:   a,
		Protocols: http1Protocol(),
		// http.Server limits the TLS handshake to the smaller of these timeouts. Each request sets its own
		// write deadline.
		ReadHeaderTimeout: max(headerTimeout, handshake),
		WriteTimeout:      handshake,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes - 4<<10, // net/http allows 4 KiB more than MaxHeaderBytes
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			switch c.LocalAddr().Network() {
			case "unix":
				uid, err := connlimit.UnixPeerUID(c)
				ctx = context.WithValue(ctx, unixSocketContextKey{}, unixSocketPeer{uid, err == nil})
			case taskapi.Network:
				ctx = context.WithValue(ctx, taskSocketContextKey{}, true)
			}
			return context.WithValue(ctx, connContextKey{}, connlimit.ConnOf(c))
		},
		ErrorLog: a.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	errs := make([]error, len(listeners))
	var servingWG sync.WaitGroup
	servingWG.Go(func() { a.variables.RunLockExpiration(base) })
	if a.config.AccessControl != nil {
		servingWG.Go(func() { a.config.AccessControl.RunTokenCollection(base) })
	}
	for i, l := range listeners {
		servingWG.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				errs[i] = fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
		})
	}
	<-ctx.Done()
	cancel() // wakes blocking requests
	shutdownCtx, end := context.WithTimeout(context.WithoutCancel(ctx), a.stopTimeout)
	defer end()
	if err := server.Shutdown(shutdownCtx); err != nil {
		server.Close()
	}
	a.execSessions.rejectNewAndWaitForSessions()
	servingWG.Wait()
	return errors.Join(errs...)
}

// HandlerWithAllRights returns a handler of the API for requests inside of this process, whose rights the caller has checked.
// It requires no token, and serves each request with all rights.
func (a *API) HandlerWithAllRights() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), authorizedContextKey{}, true)))
	})
}

// ServeHTTP implements http.Handler. It calls authorizeAndRoute, and writes the reply unless the handler of the route has
// written it.
func (a *API) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	begin := time.Now()
	h := w.Header()
	for name, value := range a.config.ReplyHeaders {
		h.Set(name, value)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding, Origin")
	r := &request{Request: hr, w: w, responseController: http.NewResponseController(w), query: hr.URL.Query(), bodyBudget: &a.bodyBudget, listCache: &a.listCache}
	r.conn, _ = hr.Context().Value(connContextKey{}).(*connlimit.Conn)
	defer r.conn.OnRequestDone()
	defer r.releaseBody()
	r.setBodyDeadline()
	value, err := a.authorizeAndRoute(r)
	err = a.recordComplete(r, err)
	switch {
	case r.isReplyWritten:
	case err != nil:
		r.setWriteDeadline()
		a.writeError(r, err)
	default:
		r.setWriteDeadline()
		a.writeReply(r, value)
	}
	a.logger.Debug("request complete", "method", hr.Method, "path", hr.URL.Path, "duration", time.Since(begin))
}

func (a *API) authorizeAndRoute(r *request) (value any, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			panic(p)
		default:
			a.logger.Error("request met a fault of this program", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			err = errors.New("this request has met a fault of nomad-lite, which the log of the agent describes")
		}
	}()
	r.conn.OnUnauthenticatedHeaderRead(r.ContentLength != 0)
	authenticated, rights, err := a.access.authorize(r.Request)
	if err == errPermissionDenied && a.access.isRepeatedThroughServer(r.Request) {
		panic(http.ErrAbortHandler)
	}
	r.rights = rights
	if auditErr := a.recordReceived(r, authenticated); auditErr != nil {
		return nil, auditErr
	}
	if author := r.author(); author != (state.Author{}) {
		r.Request = r.WithContext(scheduler.WithAuthor(r.Context(), author))
	}
	if !authenticated {
		r.discardBody()
	} else {
		err = a.countConnNowOrAfterBody(r)
	}
	if err != nil {
		return nil, err
	}
	if a.access.handleCORS(r) {
		return noContent{}, nil
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // net/http omits the body of the reply to a HEAD request
	}
	rt, id, methodAllowed, pathExists := findRoute(a.routes, method, r.URL.Path)
	r.pathID = id
	forward, err := a.mustForward(r, rt, pathExists)
	if err != nil {
		return nil, err
	}
	switch {
	case forward && r.rights.workload == nil:
		return nil, a.forward(r)
	case pathExists && !methodAllowed:
		return nil, errInvalidMethod
	case !methodAllowed && r.rights.workload != nil && a.access.control == nil:
		return nil, errPermissionDenied
	case !methodAllowed:
		return nil, &statusError{http.StatusNotFound, ""}
	}
	if err := a.checkNodeRights(r, rt); err != nil {
		return nil, err
	}
	if r.rights.isReadOnly {
		if err := r.checkReadOnlyTokenAccess(method, rt); err != nil {
			return nil, err
		}
	}
	r.access = rt.access
	if err := a.access.checkWorkloadRoute(r, method, rt); err != nil {
		return nil, err
	}
	if r.rights.tokenErr != nil && !r.access.isOpen && !isExecPattern(rt.pattern) {
		return nil, errPermissionDenied
	}
	if err := r.parseCommonParams(a.config.Region); err != nil {
		return nil, err
	}
	if !r.rights.isUnchecked && !isExecPattern(rt.pattern) { // a session checks the rights itself, because clients show only its errors
		if err := r.checkAccess(); err != nil {
			return nil, err
		}
	}
	if rt.contentType != "" && !isExecPattern(rt.pattern) { // a session watches the token that it has checked
		ctx, stop := r.endWithRights(a.config.Store)
		defer stop()
		r.Request = r.WithContext(ctx)
		defer func() { r.setEndOfStream(r.endOfRights()) }()
	}
	if forward {
		return nil, a.forward(r)
	}
	if method == http.MethodGet {
		if err := r.readAndDiscardBody(); err != nil {
			return nil, err
		}
	}
	value, err = rt.handler(r)
	if r.rights.workload != nil && r.minIndex > 0 && a.access.authenticateToken(requestToken(r.Request)) == nil {
		return nil, errPermissionDenied // the allocation has ended, or the token has expired, while the handler waited for a change
	}
	return value, err
}
