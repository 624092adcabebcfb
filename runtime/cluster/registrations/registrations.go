package registrations

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// upsertBatch limits the registrations per call.
	upsertBatch   = 200
	minRetryDelay = time.Second
	// maxUnreachableDelay limits the pause while no server can be reached, maxRefusedDelay while the servers refuse a call.
	maxUnreachableDelay = 5 * time.Second
	maxRefusedDelay     = time.Minute
)

// serverPool is the part of servers.Pool Registrations need.
type serverPool interface {
	Call(ctx context.Context, method string, request, response any) error
}

// member is the part of membership.Member Registrations need.
type member interface {
	Registered() <-chan struct{}
	Token() string
	LastContact() time.Time
	Beat()
}

// Config configures Registrations.
type Config struct {
	Region string
	NodeID string
	Pool   serverPool
	Member member
	Store  *store.Store
	Logger hclog.Logger
}

// Registrations are this node's service registrations. The methods may be called concurrently.
type Registrations struct {
	config Config
	resend chan struct{} // receives a value when the servers may have lost registrations; capacity 1
}

var _ services.Registry = (*Registrations)(nil)

// New returns the store's registrations.
func New(c Config) *Registrations {
	return &Registrations{config: c, resend: make(chan struct{}, 1)}
}

// ServicesByAllocation implements services.Registry.
func (r *Registrations) ServicesByAllocation(allocID string) []*api.ServiceRegistration {
	return r.config.Store.ServicesByAllocation(allocID)
}

// PutAndRemoveServices implements services.Registry. It returns when the change is stored; it does not wait for servers.
func (r *Registrations) PutAndRemoveServices(put, remove []*api.ServiceRegistration) error {
	_, err := r.config.Store.Update(context.Background(), func(tx *store.Txn) error {
		for _, s := range put {
			tx.PutService(s)
			tx.DeleteAgentRecord(state.ClusterServiceRemovalPrefix + s.ID)
		}
		for _, s := range remove {
			tx.DeleteService(s.Namespace, s.ID)
			tx.PutAgentRecord(state.ClusterServiceRemovalPrefix+s.ID, state.ClusterServiceRemoval{Namespace: s.Namespace, ServiceName: s.ServiceName, AllocID: s.AllocID})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store services: %w", err)
	}
	return nil
}

// Resend makes Run send all registrations again: the servers have removed them if they missed the node's heartbeats, and restored
// servers may not have them. It does not block.
func (r *Registrations) Resend() {
	wait.Notify(r.resend)
}

// Run makes the servers' registrations equal to the store's, until ctx ends. It first sends all the store's registrations,
// because an earlier agent may not have sent them. It must be called once.
//
// Run calls onRefused when the servers refuse to register a service, once for each reason. onRefused must return soon, and may be
// nil.
func (r *Registrations) Run(ctx context.Context, onRefused func(service *api.ServiceRegistration, reason error)) {
	select {
	case <-r.config.Member.Registered():
	case <-ctx.Done():
		return
	}
	s := newSync(r.config, onRefused)
	for ctx.Err() == nil {
		changes := store.NewWatchSet()
		err := s.send(ctx, r.config.Store.Snapshot(), changes)
		if err != nil && ctx.Err() == nil && s.delay == 0 && !errors.Is(err, errDeniedOnce) {
			r.config.Logger.Warn("the servers do not have all services of this node yet", "error", err)
		}
		if ctx.Err() == nil && r.waitForWork(ctx, changes, s.retryDelay(err)) {
			s.forget()
		}
	}
}

// waitForWork blocks until the store has changed, a failed call is due again, or ctx ends. It reports whether the servers may
// have lost registrations. With delay 0 there is nothing to repeat.
func (r *Registrations) waitForWork(ctx context.Context, changes store.WatchSet, delay time.Duration) (mustResend bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var retry <-chan time.Time
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		retry = timer.C
	}
	select {
	case <-changes.WatchCh(ctx): // also when ctx ends
		return false
	case <-retry:
		return false
	case <-r.resend:
		return true
	}
}

// syncer sends changes to the servers. Its methods are called by one goroutine.
type syncer struct {
	config    Config
	onRefused func(service *api.ServiceRegistration, reason error) // nil if nobody is told
	// sent has the registrations that were sent last, by ID, and accepted those the servers have for certain.
	sent     map[string]*api.ServiceRegistration
	accepted map[string]bool
	// removing has the registrations the servers may have and must not have, by ID.
	removing map[string]state.ClusterServiceRemoval
	refused  map[string]string // last reason why the servers have refused a registration, by id
	// denied has the time of a call's first denial, by registration ID.
	denied map[string]time.Time
	delay  time.Duration // the last retry's; zero after a success
}

func newSync(c Config, onRefused func(*api.ServiceRegistration, error)) *syncer {
	return &syncer{
		config: c, onRefused: onRefused, sent: make(map[string]*api.ServiceRegistration), accepted: make(map[string]bool), removing: make(map[string]state.ClusterServiceRemoval),
		refused: make(map[string]string), denied: make(map[string]time.Time),
	}
}

// forget makes the next send send all registrations.
func (s *syncer) forget() { clear(s.accepted) }

// retryDelay returns the time after which send must be repeated when it has returned err, 0 for no error.
func (s *syncer) retryDelay(err error) time.Duration {
	if err == nil {
		s.delay = 0
		return 0
	}
	limit := maxRefusedDelay
	if servers.IsUnreachable(err) {
		limit = maxUnreachableDelay
	}
	s.delay = min(max(2*s.delay, minRetryDelay), limit)
	return s.delay/2 + rand.N(s.delay/2)
}

// send sends to the servers what differs from the store, and adds a channel to changes that is closed when the store changes.
func (s *syncer) send(ctx context.Context, snapshot *store.Snapshot, changes store.WatchSet) error {
	wanted := make(map[string]*api.ServiceRegistration)
	for _, service := range snapshot.Services(changes, store.AnyNamespace) {
		if service.NodeID == s.config.NodeID {
			wanted[service.ID] = withoutIndexes(service)
		}
	}
	var changed []*api.ServiceRegistration
	for id, service := range wanted {
		if !s.accepted[id] || !reflect.DeepEqual(s.sent[id], service) {
			changed = append(changed, service)
		}
	}
	slices.SortFunc(changed, func(a, b *api.ServiceRegistration) int { return strings.Compare(a.ID, b.ID) })
	for id := range wanted {
		delete(s.removing, id)
	}
	var errs []error
	for batch := range slices.Chunk(changed, upsertBatch) {
		errs = append(errs, s.upsert(ctx, batch))
	}
	err := s.noteRemovals(snapshot, wanted)
	return errors.Join(append(errs, err, s.remove(ctx))...)
}

// withoutIndexes returns a registration without the store's indexes, which mean nothing to the servers.
func withoutIndexes(r *api.ServiceRegistration) *api.ServiceRegistration {
	c := *r
	c.CreateIndex, c.ModifyIndex = 0, 0
	return &c
}

// upsert registers services. If the servers refuse the call, it registers each service alone, so that a refused one does not stop
// the others.
func (s *syncer) upsert(ctx context.Context, batch []*api.ServiceRegistration) error {
	request := protocol.UpsertServicesRequest{Services: batch, WriteOptions: protocol.WriteOptions{Region: s.config.Region, AuthToken: s.config.Member.Token()}}
	for _, service := range batch {
		s.sent[service.ID] = service
		delete(s.accepted, service.ID)
	}
	err := s.config.Pool.Call(ctx, protocol.MethodUpsertServices, &request, &protocol.WriteMeta{})
	switch {
	case err == nil:
		for _, service := range batch {
			s.accepted[service.ID] = true
			delete(s.refused, service.ID)
			delete(s.denied, service.ID)
		}
		return nil
	case servers.IsUnreachable(err):
		return fmt.Errorf("register services: %w", err)
	case len(batch) > 1:
		var errs []error
		for _, service := range batch {
			errs = append(errs, s.upsert(ctx, []*api.ServiceRegistration{service}))
		}
		return errors.Join(errs...)
	}
	service := batch[0]
	if servers.IsPermissionDenied(err) && !s.isDeniedAgain(service.ID) {
		return fmt.Errorf("%w: %w", errDeniedOnce, err)
	}
	if s.refused[service.ID] != err.Error() {
		s.refused[service.ID] = err.Error()
		s.config.Logger.Error("the servers refuse to register a service", "service", service.ServiceName, "alloc_id", service.AllocID, "error", err)
		if s.onRefused != nil {
			s.onRefused(service, err)
		}
	}
	return fmt.Errorf("register service %q of allocation %s: %w", service.ServiceName, service.AllocID, err)
}

// noteRemovals adds to removing what the servers may have and the store no longer has. From then on it does not count as
// accepted: if a removal's answer is lost, and the service is registered again, the servers must get it again.
func (s *syncer) noteRemovals(snapshot *store.Snapshot, wanted map[string]*api.ServiceRegistration) error {
	var errs []error
	for _, name := range snapshot.AgentRecordNames(state.ClusterServiceRemovalPrefix) {
		var record state.ClusterServiceRemoval
		if _, err := snapshot.ReadAgentRecord(name, &record); err != nil {
			errs = append(errs, err)
			continue
		}
		s.removing[strings.TrimPrefix(name, state.ClusterServiceRemovalPrefix)] = record
	}
	for id, service := range s.sent {
		if wanted[id] == nil {
			s.removing[id] = state.ClusterServiceRemoval{Namespace: service.Namespace, ServiceName: service.ServiceName, AllocID: service.AllocID}
		}
	}
	for id := range s.removing {
		delete(s.sent, id)
		delete(s.accepted, id)
	}
	return errors.Join(errs...)
}

// remove removes registrations from the servers, and then the stored records of these removals.
func (s *syncer) remove(ctx context.Context) error {
	var done []string
	var errs []error
	for id, removal := range s.removing {
		if err := s.removeOne(ctx, id, removal); err != nil {
			errs = append(errs, fmt.Errorf("remove service %q of allocation %s: %w", removal.ServiceName, removal.AllocID, err))
			if servers.IsUnreachable(err) {
				break
			}
			continue
		}
		delete(s.removing, id)
		delete(s.refused, id)
		delete(s.denied, id)
		done = append(done, id)
	}
	if len(done) > 0 {
		_, err := s.config.Store.Update(ctx, func(tx *store.Txn) error {
			for _, id := range done {
				tx.DeleteAgentRecord(state.ClusterServiceRemovalPrefix + id)
			}
			return nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("store that services were removed from the servers: %w", err))
		}
	}
	return errors.Join(errs...)
}

// removeOne removes a registration from the servers. It is no error if they do not have it: they remove an ended allocation's
// registrations themselves.
func (s *syncer) removeOne(ctx context.Context, id string, removal state.ClusterServiceRemoval) error {
	request := protocol.DeleteServiceRequest{ID: id, WriteOptions: protocol.WriteOptions{
		Region: s.config.Region, Namespace: removal.Namespace, AuthToken: s.config.Member.Token(),
	}}
	err := s.config.Pool.Call(ctx, protocol.MethodDeleteService, &request, &protocol.WriteMeta{})
	switch {
	case err == nil, servers.IsServiceNotFound(err):
		return nil
	case servers.IsPermissionDenied(err) && s.isDeniedAgain(id):
		return nil // servers with access control deny the removal of unknown registrations
	case servers.IsPermissionDenied(err):
		return fmt.Errorf("%w: %w", errDeniedOnce, err)
	}
	return err
}

// errDeniedOnce means a denial may not be the servers' last word: the node's identity may have expired, and a server that has
// just started may have no keys yet.
var errDeniedOnce = errors.New("denied once")

// isDeniedAgain notes that the servers have denied a call for a registration. It reports whether they already denied it before
// the last accepted heartbeat, which renews the node's identity.
func (s *syncer) isDeniedAgain(id string) bool {
	first, known := s.denied[id]
	if !known {
		first = time.Now()
		s.denied[id] = first
	}
	if known && !s.config.Member.LastContact().Before(first) {
		return true
	}
	s.config.Member.Beat()
	return false
}
