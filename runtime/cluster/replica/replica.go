package replica

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// serverPool is the part of servers.Pool a Replica needs.
type serverPool interface {
	Call(ctx context.Context, method string, request, response any) error
	CallBlocking(ctx context.Context, maxBlock time.Duration, method string, request, response any) error
	WaitRetry(ctx context.Context, max time.Duration) error
}

// member is the part of membership.Member a Replica needs.
type member interface {
	Registered() <-chan struct{}
	Token() string
	Secret() string
	LastContact() time.Time
	CredentialsRejected() bool
	Beat()
	ConfirmRegistered(context.Context) error
}

// nodeStore is the part of store.Store a Replica needs.
type nodeStore interface {
	Snapshot() *store.Snapshot
	Update(ctx context.Context, fn func(*store.Txn) error) (index uint64, err error)
}

// Config configures a Replica.
type Config struct {
	Region string
	NodeID string
	Pool   serverPool
	Member member
	Store  nodeStore
	// OnAllocsChanged is called after each change to the assigned allocations in the store. It must return soon.
	OnAllocsChanged func()
	Logger          hclog.Logger
}

// Events are the functions that Run calls. They must return soon, and may be nil.
type Events struct {
	// OnReconnected is called for a running allocation that servers had given up because they missed this node's heartbeats.
	OnReconnected func(allocID string)
	// OnServersRestored is called when the servers have gone back to an earlier state, so they may have lost what this node has sent
	// since.
	OnServersRestored func()
}

// Replica connects the store's allocations with the servers. Its methods may be called concurrently.
type Replica struct {
	config    Config
	events    Events // set by Run, for the goroutines that it starts
	startTime time.Time
	pulled    chan struct{} // closed when this agent has stored the servers' allocations for the first time
	wake      chan struct{} // receives a value when there are states to send; capacity 1
	// limitsChanged receives a value when an allocation's stop_on_client_after may have changed; capacity 1.
	limitsChanged chan struct{}

	// resendStates means the servers may have lost accepted states, so all are sent again after the next list. It belongs to
	// pullAllocs.
	resendStates bool
	// rejected maps rejected allocations to their indexes in the servers' list. It belongs to pullAllocs.
	rejected map[string]uint64
	// assigned has the index of each stored allocation assigned by the servers; nil until this agent has stored a first list. It
	// belongs to pullAllocs.
	assigned map[string]uint64

	mu sync.Mutex
	// unsent maps allocations with unsent states to the latest time for sending them.
	unsent map[string]time.Time
	// inDoubt are allocations with an earlier call that can still be on its way, because it failed or an earlier agent made it.
	// Servers that execute it late replace the newer states they have got meanwhile.
	inDoubt map[string]bool
	// resendAt maps allocations that were in doubt to the time for sending their states again.
	resendAt map[string]time.Time
	// sentStatus is the client status of each allocation the servers have accepted from this agent.
	sentStatus map[string]string
	// beatWhenSent means a heartbeat must follow the next accepted states.
	beatWhenSent bool
}

// New returns a Replica. Run sends states the servers have not accepted from an earlier agent.
func New(c Config) *Replica {
	return &Replica{
		config:        c,
		startTime:     time.Now(),
		pulled:        make(chan struct{}),
		wake:          make(chan struct{}, 1),
		limitsChanged: make(chan struct{}, 1),
		rejected:      make(map[string]uint64),
		unsent:        make(map[string]time.Time),
		inDoubt:       make(map[string]bool),
		resendAt:      make(map[string]time.Time),
		sentStatus:    make(map[string]string),
	}
}

// AwaitNewStart blocks until the store has had the servers' assignments once since New, and has the allocation as one that must
// run: the servers may have assigned it elsewhere meanwhile. It returns ctx's cause if ctx ends before. It calls onWait before it
// blocks for the servers.
func (r *Replica) AwaitNewStart(ctx context.Context, allocID string, onWait func(spanName string, event *api.TaskEvent)) error {
	if !wait.IsClosed(r.pulled) {
		onWait(tracespan.WaitServers, model.EventWaitingForServers())
		select {
		case <-r.pulled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// If the servers have stopped the allocation, its runner gets the new version after the store, and then ends ctx.
	for {
		ws := store.NewWatchSet()
		if a := r.config.Store.Snapshot().Allocation(ws, allocID); a != nil && !a.ServerTerminalStatus() {
			return nil
		}
		if err := ws.WatchCtx(ctx); err != nil {
			return context.Cause(ctx)
		}
	}
}

// Run pulls allocations and sends states until ctx ends. It must be called once.
func (r *Replica) Run(ctx context.Context, events Events) {
	r.events = events
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.stopAfterDisconnect(ctx) })
	select {
	case <-r.config.Member.Registered():
	case <-ctx.Done():
		return
	}
	running.Go(func() { r.pullAllocs(ctx) })
	select {
	case <-r.pulled: // earlier, the servers have newer facts about the allocations than this node
	case <-ctx.Done():
		return
	}
	r.sendStates(ctx)
}
