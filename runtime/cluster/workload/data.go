package workload

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/node/workloaddata"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

const (
	// watchLinger is how long a subject is watched after its last reader: a reader waiting for changes reads again at once, and must
	// not miss the watch others share.
	watchLinger          = 10 * time.Second
	defaultRetryDelay    = time.Second
	defaultMaxRetryDelay = time.Minute
)

// DataConfig configures Data. It has no node token: each call has a task's.
type DataConfig struct {
	Region string
	Pool   serverPool
	// Registered is closed when the servers have accepted a registration of the node.
	Registered <-chan struct{}
	Store      *store.Store
	Logger     hclog.Logger
	ReadSettings
}

// ReadSettings configures reads from the servers, for all the node's hooks and tasks.
type ReadSettings struct {
	MaxBlock time.Duration  // longest time a server blocks one query; zero means five minutes
	MaxStale *time.Duration // longest time since the answering server heard from the leader; nil means no limit, and zero that only the leader answers
	// RetryDelay and MaxRetryDelay are the first and the longest delay after a failed call; zero means a second and a minute.
	RetryDelay, MaxRetryDelay time.Duration
}

// Data reads a cluster's variables and services for workloads. Readers of the same subject share one blocking call to the
// servers. While no server can be reached, they get the last values. Its methods may be called concurrently.
type Data struct {
	config DataConfig

	mu      sync.Mutex
	closed  bool
	watches map[subject]*watch
	polling sync.WaitGroup
}

var _ workloaddata.Source = (*Data)(nil)

// NewData returns a Data. The caller must call Close.
func NewData(c DataConfig) *Data {
	longest := cmp.Or(c.MaxRetryDelay, defaultMaxRetryDelay)
	c.RetryDelay = cmp.Or(c.RetryDelay, min(defaultRetryDelay, longest))
	c.MaxRetryDelay = max(c.RetryDelay, longest)
	return &Data{config: c, watches: make(map[subject]*watch)}
}

// kind is a subject's type.
type kind string

const (
	variable     kind = "variable"
	variableList kind = "variables with the prefix"
	service      kind = "service"
	serviceNames kind = "names of services"
)

// subject is watched with a task's token. name is the path, the prefix or the service name.
type subject struct {
	kind                           kind
	namespace, name, allocID, task string
}

// watch has a subject's last value, and the goroutine that keeps it current.
type watch struct {
	cancel  context.CancelFunc
	endCall context.CancelFunc // ends the present call to the servers; nil before the first
	readers int                // contexts of readers that have not ended
	linger  *time.Timer        // cancels the watch without readers; nil while it has some

	known   bool // value is a server's
	value   any  // as fetch returns it; not changed in place
	index   uint64
	err     error         // set instead of known if the servers have answered the first call with an error; then the watch has ended
	changed chan struct{} // closed and replaced when one of the fields since known changes
}

// Close ends all watches and blocks until their goroutines have returned. From then on, calls to other methods block until their
// context ends, because the readers continue with the next agent.
func (d *Data) Close() {
	d.mu.Lock()
	d.closed = true
	for s, w := range d.watches {
		d.endLocked(s, w)
	}
	d.mu.Unlock()
	d.polling.Wait()
}

// ReadAgain makes all watches read their values again, because the servers were restored from a snapshot, which ends no blocked
// call. It does not block.
func (d *Data) ReadAgain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.watches {
		if w.endCall != nil {
			w.endCall()
		}
	}
}

// Variable implements workloaddata.Source.
func (d *Data) Variable(ctx context.Context, ws store.WatchSet, w identity.Workload, namespace, path string) (*api.Variable, uint64, error) {
	return read[*api.Variable](ctx, d, ws, newSubject(variable, w, namespace, path))
}

// Variables implements workloaddata.Source.
func (d *Data) Variables(ctx context.Context, ws store.WatchSet, w identity.Workload, namespace, prefix string) ([]*api.VariableMetadata, uint64, error) {
	return read[[]*api.VariableMetadata](ctx, d, ws, newSubject(variableList, w, namespace, prefix))
}

// Services implements workloaddata.Source. With an empty name it returns one entry per service, with only the name and all
// instances' tags: the servers have no other list of all services.
func (d *Data) Services(ctx context.Context, ws store.WatchSet, w identity.Workload, name string) ([]hook.Service, uint64, error) {
	k := service
	if name == "" {
		k = serviceNames
	}
	return read[[]hook.Service](ctx, d, ws, newSubject(k, w, "", name))
}

// HasConsulServices implements workloaddata.Source: Consul services are not among the servers'.
func (*Data) HasConsulServices(store.WatchSet, identity.Workload) (bool, uint64) { return false, 1 }

func newSubject(k kind, w identity.Workload, namespace, name string) subject {
	return subject{kind: k, namespace: cmp.Or(namespace, w.Namespace, "default"), name: name, allocID: w.AllocID, task: w.Task}
}

// read returns a subject's value. It watches the subject until ctx ends, and adds to ws a channel that is closed when the value
// changes. It blocks until a server has sent the value, or until ctx ends.
func read[T any](ctx context.Context, d *Data, ws store.WatchSet, s subject) (value T, index uint64, err error) {
	w := d.startReading(s)
	if w == nil {
		<-ctx.Done()
		return value, 0, context.Cause(ctx)
	}
	context.AfterFunc(ctx, func() { d.stopReading(s, w) })
	for {
		d.mu.Lock()
		known, current, index, err, changed := w.known, w.value, w.index, w.err, w.changed
		d.mu.Unlock()
		if err != nil {
			return value, 0, err
		}
		if known {
			ws.Add(changed)
			value, _ = current.(T)
			return value, index, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return value, 0, context.Cause(ctx)
		}
	}
}

// startReading returns a subject's watch, and starts it if there is none. It returns nil after Close.
func (d *Data) startReading(s subject) *watch {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	w := d.watches[s]
	if w == nil {
		pollCtx, cancel := context.WithCancel(context.Background()) // not ctx, because other readers share the watch
		w = &watch{cancel: cancel, changed: make(chan struct{})}
		d.watches[s] = w
		d.polling.Go(func() { d.poll(pollCtx, s, w) })
	}
	w.readers++
	if w.linger != nil {
		w.linger.Stop()
		w.linger = nil
	}
	return w
}

// stopReading ends a subject's watch when it has had no readers for a while.
func (d *Data) stopReading(s subject, w *watch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.readers--
	if w.readers > 0 || d.watches[s] != w {
		return
	}
	w.linger = time.AfterFunc(watchLinger, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if w.readers == 0 && d.watches[s] == w {
			d.endLocked(s, w)
		}
	})
}

// endLocked ends a watch.
func (d *Data) endLocked(s subject, w *watch) {
	w.cancel()
	if w.linger != nil {
		w.linger.Stop()
	}
	delete(d.watches, s)
}

// poll keeps a watch's value current until ctx ends, or until the servers refuse the first read.
func (d *Data) poll(ctx context.Context, s subject, w *watch) {
	defer w.cancel()
	select {
	case <-d.config.Registered:
	case <-ctx.Done():
		return
	}
	query := servers.Query{MaxBlock: d.config.MaxBlock, MaxStale: d.config.MaxStale}
	retryDelay, denied := time.Duration(0), false
	for ctx.Err() == nil {
		callCtx, endCall := context.WithCancel(ctx)
		d.mu.Lock()
		w.endCall = endCall
		d.mu.Unlock()
		fetched, err := d.fetch(callCtx, s, &query)
		mustReadAgain := callCtx.Err() != nil
		endCall()
		switch {
		case ctx.Err() != nil:
			return
		case mustReadAgain:
			query.Restart()
			continue
		}
		if err != nil {
			// A server that has just started may have no keys yet, and deny what it allows a moment later.
			mayBeTemporary := servers.IsPermissionDenied(err) && !denied
			denied = denied || mayBeTemporary
			if !mayBeTemporary && !d.keepWatchingAfterError(s, w, err, retryDelay == 0) {
				return
			}
			query.Restart()
			retryDelay = min(max(2*retryDelay, d.config.RetryDelay), d.config.MaxRetryDelay)
			pause := wait.Sleep // after an answer, another call's success is no reason to call again
			if servers.IsUnreachable(err) {
				pause = d.config.Pool.WaitRetry
			}
			if pause(ctx, retryDelay/2+rand.N(retryDelay/2)) != nil {
				return
			}
			continue
		}
		retryDelay = 0
		if query.IsTooOld(fetched.lastContact) {
			continue
		}
		if query.IsNew(ctx, fetched.pollIndex) {
			d.setValue(w, fetched)
		}
	}
}

// setValue stores a server's answer. Readers wait for a higher index, so a changed value gets one even if the servers have
// restored an earlier state.
func (d *Data) setValue(w *watch, f fetched) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case w.known && reflect.DeepEqual(w.value, f.value):
		return
	case w.known:
		w.index = max(f.valueIndex, w.index+1)
	default:
		w.known, w.index = true, max(f.valueIndex, 1)
	}
	w.value = f.value
	close(w.changed)
	w.changed = make(chan struct{})
}

// keepWatchingAfterError reports whether the watch continues: a known value stays, and unreachable servers are called again.
// Otherwise it ends the watch, and its readers get the error. The first of several errors is logged.
func (d *Data) keepWatchingAfterError(s subject, w *watch, err error, isFirst bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	unreachable := servers.IsUnreachable(err) && !isTokenError(err)
	logger := d.config.Logger.With("kind", string(s.kind), "name", s.name, "alloc_id", s.allocID, "task", s.task)
	switch {
	case w.known && !unreachable && isFirst:
		logger.Warn("not read from the servers, the last value stays in use", "error", err)
	case !w.known && unreachable && isFirst:
		logger.Warn("not read from the servers, the readers wait", "error", err)
	}
	if w.known || unreachable {
		return true
	}
	w.err = fmt.Errorf("read %s %q with the identity of the task: %w", s.kind, s.name, err)
	if servers.IsPermissionDenied(err) {
		w.err = fmt.Errorf("%w: no policy of the job allows it", w.err)
	}
	close(w.changed)
	if d.watches[s] == w {
		d.endLocked(s, w)
	}
	return false
}

// fetched is a server's answer.
type fetched struct {
	value       any
	valueIndex  uint64        // the value's last change
	pollIndex   uint64        // a call with this index blocks until there may be another value
	lastContact time.Duration // time since the server had heard from its leader
}

// fetch reads a subject from the servers. It blocks as the query does.
func (d *Data) fetch(ctx context.Context, s subject, query *servers.Query) (fetched, error) {
	token, err := readTaskToken(d.config.Store.Snapshot().Reader, s.allocID, s.task)
	if err != nil {
		return fetched{}, tokenError{err}
	}
	options := protocol.ReadOptions{Region: d.config.Region, Namespace: s.namespace, AuthToken: token.jwt}
	block := query.Next(&options)
	call := func(method string, request, response any) error {
		return d.config.Pool.CallBlocking(ctx, block, method, request, response)
	}
	switch s.kind {
	case variable:
		var r protocol.ReadVariableResponse
		if err := call(protocol.MethodReadVariable, &protocol.ReadVariableRequest{Path: s.name, ReadOptions: options}, &r); err != nil {
			return fetched{}, err
		}
		if r.Data == nil {
			return fetched{(*api.Variable)(nil), r.Index, r.Index, r.LastContact}, nil
		}
		return fetched{r.Data, r.Data.ModifyIndex, r.Index, r.LastContact}, nil
	case variableList:
		options.Prefix = s.name
		var r protocol.ListVariablesResponse
		if err := call(protocol.MethodListVariables, &protocol.ListVariablesRequest{ReadOptions: options}, &r); err != nil {
			return fetched{}, err
		}
		workloaddata.SortVariables(r.Data)
		return fetched{r.Data, r.Index, r.Index, r.LastContact}, nil
	case service:
		var r protocol.GetServiceResponse
		if err := call(protocol.MethodGetService, &protocol.GetServiceRequest{ServiceName: s.name, ReadOptions: options}, &r); err != nil {
			return fetched{}, err
		}
		return fetched{workloaddata.NewHookServices(r.Services, nil), r.Index, r.Index, r.LastContact}, nil
	default:
		var r protocol.ListServicesResponse
		if err := call(protocol.MethodListServices, &protocol.ListServicesRequest{ReadOptions: options}, &r); err != nil {
			return fetched{}, err
		}
		return fetched{servicesOfList(&r), r.Index, r.Index, r.LastContact}, nil
	}
}

// servicesOfList returns one entry for each service in a list, by name.
func servicesOfList(r *protocol.ListServicesResponse) []hook.Service {
	var list []hook.Service
	for _, namespace := range r.Services {
		for _, s := range namespace.Services {
			list = append(list, hook.Service{Name: s.ServiceName, Tags: s.Tags})
		}
	}
	slices.SortFunc(list, func(a, b hook.Service) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
