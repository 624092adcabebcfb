package workload

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	nodeToken = "secret of the node"
	allocID   = "9a30b60a-07ff-f6ce-ec36-533c48a52b97"
)

var errUnreachable = errors.New("connection reset")

// fakePool answers calls with a test's function.
type fakePool struct {
	answer func(ctx context.Context, method string, request, response any) error

	mu    sync.Mutex
	calls []string // methods
}

func (f *fakePool) CallBlocking(ctx context.Context, _ time.Duration, method string, request, response any) error {
	f.mu.Lock()
	f.calls = append(f.calls, method)
	f.mu.Unlock()
	return f.answer(ctx, method, request, response)
}

func (f *fakePool) WaitRetry(ctx context.Context, max time.Duration) error {
	return wait.Sleep(ctx, max)
}

func (f *fakePool) callCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.calls)
}

// fakeJWT returns an unsigned token with claims.
func fakeJWT(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// taskJWT returns the default identity of a task in the test allocation.
func taskJWT(task string) string {
	return fakeJWT(fmt.Sprintf(`{"nomad_allocation_id":%q,"nomad_task":%q}`, allocID, task))
}

// newStore returns a store with an allocation that has two tasks, "t" and "u", and the given record.
func newStore(t testing.TB, record state.ClusterAlloc) *store.Store {
	t.Helper()
	s, err := store.OpenMemory(store.Config{Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	job, group := "web", "g"
	_, err = s.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutScheduledAllocation(&api.Allocation{
			ID: allocID, Namespace: "prod", JobID: job, TaskGroup: group, NodeID: "node", ClientStatus: "running",
			Job: &api.Job{ID: &job, TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "t"}, {Name: "u"}}}}},
		})
		tx.PutAgentRecord(state.ClusterAllocPrefix+allocID, record)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func signedTasks() state.ClusterAlloc {
	return state.ClusterAlloc{CreateIndex: 14, IdentityByTask: map[string]string{"t": taskJWT("t"), "u": taskJWT("u")}}
}

// newData returns a registered node's Data, which is closed when the test ends.
func newData(t testing.TB, pool serverPool, s *store.Store, settings ...ReadSettings) *Data {
	registered := make(chan struct{})
	close(registered)
	c := DataConfig{Region: "global", Pool: pool, Registered: registered, Store: s, Logger: hclog.NewNullLogger()}
	if len(settings) > 0 {
		c.ReadSettings = settings[0]
	}
	d := NewData(c)
	t.Cleanup(d.Close)
	return d
}

func workloadOf(task string) identity.Workload {
	return identity.Workload{Namespace: "prod", JobID: "web", Group: "g", AllocID: allocID, Task: task}
}

// tokenOf returns a request's token.
func tokenOf(request any) string {
	switch r := request.(type) {
	case *protocol.ReadVariableRequest:
		return r.AuthToken
	case *protocol.ListVariablesRequest:
		return r.AuthToken
	case *protocol.GetServiceRequest:
		return r.AuthToken
	case *protocol.ListServicesRequest:
		return r.AuthToken
	}
	panic(fmt.Sprintf("unexpected request %T", request))
}
