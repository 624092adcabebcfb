package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/runtime/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/hoststats"
	"github.com/nomad-lite/nomad-lite/runtime/logs"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/taskfiles"
	"github.com/nomad-lite/nomad-lite/runtime/variables"
)

// Node is what runs on this node. runtime/agent is one.
type Node interface {
	// Alloc returns the runner of an allocation, nil if there is none.
	Alloc(id string) *allocrunner.Runner
	// CollectAlloc takes an ended allocation off the disk, CollectAllocs all of them.
	CollectAlloc(ctx context.Context, id string) error
	CollectAllocs()
	// CheckAttachments tells what is wrong with the hooks that a canonical job
	// attaches, and which of them cannot be asked now.
	CheckAttachments(context.Context, *api.Job) (faults []model.Unsupported, trouble []error)
	// Logs has what tasks print, below the LogDir of their allocations.
	Logs() *logs.Collector
	LogDir(allocID string) string
	// Files opens the directory of an allocation, whether it runs or not. The error
	// is fs.ErrNotExist if it is not on the disk.
	Files(allocID string) (*taskfiles.Dir, error)
	// Usage tells how busy the machine is.
	Usage(context.Context) hoststats.Stats
	// Meta is the metadata of the node; SetMeta changes it for good.
	Meta() api.NodeMetaResponse
	SetMeta(context.Context, map[string]*string) error
	// TaskConfigSchema is what a driver takes in the config block of a task.
	TaskConfigSchema(ctx context.Context, driver string) (*hclspec.Spec, error)
}

// Config is what an API is made of.
type Config struct {
	Store     *store.Store
	Scheduler *scheduler.Scheduler
	Node      Node
	Parser    parser
	NodeID    string
	Region    string
	Advertise string // host:port by which the node is known
	// Self returns the configuration of the agent for everybody to see; it has no
	// secrets. Reload reads the configuration again. Both may be nil.
	Self   func() map[string]any
	Reload func() error
	// Log is what the monitor shows; nil shows nothing.
	Log hclog.InterceptLogger
	// Debug gives away profiles and facts about the host.
	Debug bool
	// Version is that of Nomad whose API this is.
	Version string

	// Token is what a client must show that comes neither over a unix socket nor
	// with a certificate. Empty lets everybody in.
	Token Secret
	// ReadToken opens what [readOnlyRoutes] names where Token is wanted; empty opens
	// nothing.
	ReadToken Secret
	// HandshakeTimeout limits a TLS handshake; 0 is five seconds.
	HandshakeTimeout time.Duration
	// Names are the host names under which the API may be reached, besides
	// localhost and any address.
	Names []string
	// Headers are added to all answers.
	Headers map[string]string

	Logger hclog.Logger
}

// API serves the HTTP API.
type API struct {
	config    Config
	routes    []route
	logger    hclog.Logger
	variables *variables.Variables
	started   time.Time
	telemetry atomic.Pointer[Telemetry]
	bodies    budget
	sessions  sync.WaitGroup // over websockets
}

// New returns an API that listens nowhere yet.
func New(c Config) *API {
	logger := c.Logger.Named("http")
	a := &API{config: c, routes: routes, logger: logger, variables: variables.New(c.Store, logger), started: time.Now()}
	a.bodies.free.Store(maxBodies)
	a.SetTelemetry(Telemetry{})
	return a
}

// The limits of a connection. Answers that wait have none for the whole, but each
// write of theirs has one.
const (
	headerTimeout    = 15 * time.Second // a loaded machine needs seconds for hundreds of clients at once
	bodyTimeout      = time.Minute
	refuseTimeout    = time.Second // for a body that is not read
	writeTimeout     = time.Minute
	handshakeTimeout = 5 * time.Second // of TLS, unless configured
	idleTimeout      = 2 * time.Minute
	maxHeader        = 16 << 10
	maxBody          = 1 << 20
	maxJob           = 16 << 20
	stopTimeout      = time.Second
)

// http1 is what Nomad's clients speak: websockets need it.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// unixKey marks the context of a request that came over a unix socket. connKey is the
// key of its connection, if that is counted.
type (
	unixKey struct{}
	connKey struct{}
)

// Serve answers on the listeners until ctx ends, and closes them. Requests that
// wait are answered at the end.
func (a *API) Serve(ctx context.Context, listeners ...net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	handshake := cmp.Or(a.config.HandshakeTimeout, handshakeTimeout)
	server := &http.Server{
		Handler:   a,
		Protocols: http1(),
		// The lesser of the two is the limit of a TLS handshake. Each request sets its own
		// deadline for writing.
		ReadHeaderTimeout: max(headerTimeout, handshake),
		WriteTimeout:      handshake,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader - 4<<10, // the server reads 4 KiB more
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if c.LocalAddr().Network() == "unix" {
				ctx = context.WithValue(ctx, unixKey{}, true)
			}
			if limited := connOf(c); limited != nil {
				ctx = context.WithValue(ctx, connKey{}, limited)
			}
			return ctx
		},
		ErrorLog: a.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	errs := make([]error, len(listeners))
	var serving sync.WaitGroup
	serving.Go(func() { a.variables.Run(base) })
	for i, l := range listeners {
		serving.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				errs[i] = fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
		})
	}
	<-ctx.Done()
	cancel() // wakes those that wait
	grace, end := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer end()
	if err := server.Shutdown(grace); err != nil {
		server.Close()
	}
	a.sessions.Wait()
	serving.Wait()
	return errors.Join(errs...)
}

// ServeHTTP implements http.Handler: it is what all requests go through.
func (a *API) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	begin := time.Now()
	h := w.Header()
	for name, value := range a.config.Headers {
		h.Set(name, value)
	}
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding, Origin")
	r := &request{Request: hr, w: w, control: http.NewResponseController(w), query: hr.URL.Query(), bodies: &a.bodies}
	r.conn, _ = hr.Context().Value(connKey{}).(*limitConn)
	defer r.releaseBody()
	r.limit()
	value, err := a.answer(r)
	switch {
	case r.answered:
	case err != nil:
		r.begin()
		a.refuse(r, err)
	default:
		r.begin()
		a.reply(r, value)
	}
	a.logger.Debug("request complete", "method", hr.Method, "path", hr.URL.Path, "duration", time.Since(begin))
}

func (a *API) answer(r *request) (value any, err error) {
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
	r.conn.request(r.ContentLength != 0)
	authenticated, err := a.authorize(r.Request)
	if !authenticated {
		r.refuseBody()
	} else {
		err = a.count(r)
	}
	if err != nil {
		return nil, err
	}
	if a.handleCORS(r) {
		return noContent{}, nil
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // net/http leaves the body out
	}
	rt, id, found, otherMethod := find(a.routes, method, r.URL.Path)
	switch {
	case otherMethod && !found:
		return nil, errMethod
	case !found:
		return nil, &statusError{http.StatusNotFound, ""}
	}
	r.id = id
	if r.readOnly = a.readOnly(r.Request); r.readOnly {
		if err := r.admitReadOnly(method, rt); err != nil {
			return nil, err
		}
	}
	if err := r.parse(a.config.Region); err != nil {
		return nil, err
	}
	if method == http.MethodGet {
		if err := r.skipBody(); err != nil {
			return nil, err
		}
	}
	return rt.serve(a, r)
}
