package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/agent/httpapi"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/clustertest"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// ownServer is a server of one node, made of the parts of an agent that schedules for itself. Package clustertest passes the
// allocations of its scheduler to the node, and the reports of the node back.
type ownServer struct {
	address   string // of the HTTP API
	nodeID    string
	cluster   *clustertest.Cluster
	store     *store.Store
	scheduler *scheduler.Scheduler
}

// startOwnServer starts a server and a node. Both are stopped at the end of the test.
func startOwnServer(t *testing.T) *ownServer {
	t.Helper()
	protocolServer := clustertest.Start(t, clustertest.Config{})
	node := systemtest.StartTestAgent(t, false, fmt.Sprintf("client { servers = [%q] }\n", protocolServer.Addr()))
	s := &ownServer{nodeID: node.NodeID, cluster: protocolServer.Cluster}
	if _, err := s.cluster.WaitNode(t.Context(), s.nodeID, func(n clustertest.Node) bool { return n.Status == api.NodeStatusReady }); err != nil {
		t.Fatal(err)
	}
	logger := hclog.NewNullLogger()
	dir := t.TempDir()
	var err error
	s.store, err = store.Open(t.Context(), store.Config{StateFilePath: filepath.Join(dir, "state.db"), KeyFile: filepath.Join(dir, "keyring.json"), Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	s.scheduler = scheduler.New(scheduler.Config{Store: s.store, NodeID: s.nodeID, Logger: logger, HostEnv: scheduler.Env{
		NewID:      uuid.NewString,
		IsPortFree: func(p scheduler.HostPort) bool { return hostport.IsFree(p.Port) },
		RandIntN:   rand.IntN,
		Now:        time.Now,
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, loop := range map[string]func(context.Context) error{"assign": s.assign, "receive reports": s.receiveReports} {
		running.Go(func() {
			if err := loop(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	running.Go(func() { s.scheduler.Run(ctx) })
	routes := s.newNodeRoutes()
	routes.Handle("/", httpapi.New(httpapi.Config{
		Store: s.store, Scheduler: s.scheduler, Plugins: remotePlugins{}, NodeID: s.nodeID, Region: api.GlobalRegion,
		NomadAPIVersion: fingerprint.NomadVersion, Logger: logger,
	}))
	listener := httptest.NewServer(routes)
	s.address = listener.URL
	t.Cleanup(func() {
		listener.CloseClientConnections()
		listener.Close()
		cancel()
		running.Wait()
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// assign passes the allocations and variables of the store to the cluster until ctx ends.
func (s *ownServer) assign(ctx context.Context) error {
	allocIndexes, variableIndexes := map[string]uint64{}, map[string]uint64{}
	for {
		snapshot := s.store.Snapshot()
		listed := map[string]bool{}
		for _, a := range scheduler.DesiredAllocs(snapshot.Reader) {
			listed[a.ID] = true
			if allocIndexes[a.ID] == a.AllocModifyIndex {
				continue
			}
			if err := s.cluster.PutAlloc(a); err != nil {
				return err
			}
			allocIndexes[a.ID] = a.AllocModifyIndex
		}
		for id := range allocIndexes {
			if !listed[id] {
				delete(allocIndexes, id)
				s.cluster.RemoveAlloc(id)
			}
		}
		exists := map[string]bool{}
		for _, v := range snapshot.Variables(nil, api.DefaultNamespace, "") {
			exists[v.Path] = true
			if variableIndexes[v.Path] != v.ModifyIndex {
				s.cluster.PutVariable(v.Namespace, v.Path, v.Items)
				variableIndexes[v.Path] = v.ModifyIndex
			}
		}
		for path := range variableIndexes {
			if !exists[path] {
				delete(variableIndexes, path)
				s.cluster.DeleteVariable(api.DefaultNamespace, path)
			}
		}
		if err := s.store.WaitForIndex(ctx, snapshot.Index()+1); err != nil {
			return err
		}
	}
}

// receiveReports passes the record of the node, and what it reports about allocations and services, to the store until ctx ends.
func (s *ownServer) receiveReports(ctx context.Context) error {
	var nodeIndex, allocsIndex uint64
	var services []api.ServiceRegistration
	for {
		changed := s.cluster.Changed()
		if node, known := s.cluster.Node(s.nodeID); known && node.ModifyIndex != nodeIndex {
			if err := s.storeNode(ctx, node); err != nil {
				return err
			}
			nodeIndex = node.ModifyIndex
		}
		allocs, index, err := s.cluster.AllocsAfter(s.nodeID, allocsIndex)
		if err != nil {
			return err
		}
		allocsIndex = index
		var reports []model.AllocReport
		for _, a := range allocs {
			if len(a.TaskStates) > 0 {
				reports = append(reports, newReport(&a.Allocation))
			}
		}
		if len(reports) > 0 {
			if _, err := s.scheduler.ApplyAllocReports(ctx, reports...); err != nil {
				return err
			}
		}
		if now := s.cluster.Services(api.DefaultNamespace); !reflect.DeepEqual(now, services) {
			services = now
			if err := s.storeServices(ctx, now); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// newReport returns the report of the node that an allocation of the cluster has.
func newReport(a *api.Allocation) model.AllocReport {
	report := model.AllocReport{
		AllocID: a.ID, ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription, TaskStates: a.TaskStates,
		NetworkStatus: a.NetworkStatus, TasksAndHooksEnded: a.ClientTerminalStatus(),
	}
	if health := a.DeploymentStatus; health != nil && health.Healthy != nil {
		report.Health = &model.DeploymentHealth{DeploymentID: a.DeploymentID, Healthy: *health.Healthy, DecidedAt: health.Timestamp}
	}
	return report
}

// storeNode stores the record of the node, and keeps the eligibility and the drain, which belong to the scheduler.
func (s *ownServer) storeNode(ctx context.Context, node clustertest.Node) error {
	encoded, err := wire.EncodeBytes(&node.Record)
	if err != nil {
		return err
	}
	_, err = s.store.Update(ctx, func(tx *store.Txn) error {
		record := &api.Node{}
		if err := wire.DecodeBytes(encoded, record); err != nil {
			return err
		}
		record.Status = node.Status
		if old := tx.Node(nil, s.nodeID); old != nil {
			record.SchedulingEligibility, record.DrainStrategy, record.LastDrain = old.SchedulingEligibility, old.DrainStrategy, old.LastDrain
		}
		tx.PutNodeWithStorageEvents(record)
		return nil
	})
	s.scheduler.RetryBlockedEvals()
	return err
}

// storeServices makes the registrations of services in the store equal to those of the cluster.
func (s *ownServer) storeServices(ctx context.Context, services []api.ServiceRegistration) error {
	_, err := s.store.Update(ctx, func(tx *store.Txn) error {
		for _, old := range tx.Services(nil, api.DefaultNamespace) {
			tx.DeleteService(old.Namespace, old.ID)
		}
		for _, service := range services {
			tx.PutService(&service)
		}
		return nil
	})
	return err
}

// remotePlugins has no drivers, because its HTTP API has no node. newNodeRoutes serves requests about tasks.
type remotePlugins struct{}

func (remotePlugins) CheckHookAttachments(context.Context, *api.Job) ([]admission.HookAttachmentFault, []error) {
	return nil, nil
}

func (remotePlugins) TaskConfigSchema(context.Context, string) (*hclspec.Spec, error) {
	return nil, errors.New("servers do not have the schemas of drivers")
}

func (remotePlugins) DriverCapabilities(context.Context, string) (*driver.Capabilities, error) {
	return nil, errors.New("servers do not have the capabilities of drivers")
}

// newNodeRoutes returns the routes of the HTTP API for which a server calls the node.
func (s *ownServer) newNodeRoutes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/client/allocation/{id}/stats", func(w http.ResponseWriter, r *http.Request) {
		var response protocol.AllocStatsResponse
		err := s.call(r, protocol.MethodAllocStats, &protocol.AllocStatsRequest{AllocID: r.PathValue("id"), Task: r.FormValue("task")}, &response)
		writeJSON(w, response.Stats, err)
	})
	mux.HandleFunc("GET /v1/client/allocation/{id}/checks", func(w http.ResponseWriter, r *http.Request) {
		var response protocol.AllocChecksResponse
		err := s.call(r, protocol.MethodAllocChecks, &protocol.AllocRequest{AllocID: r.PathValue("id")}, &response)
		replies := make(map[string]checkReply, len(response.Results))
		for id, result := range response.Results {
			replies[id] = checkReply{*result, result.StatusCode}
		}
		writeJSON(w, replies, err)
	})
	mux.HandleFunc("PUT /v1/client/allocation/{id}/restart", func(w http.ResponseWriter, r *http.Request) {
		var body api.AllocationRestartRequest
		err := json.NewDecoder(r.Body).Decode(&body)
		if err == nil {
			request := &protocol.RestartAllocRequest{AllocID: r.PathValue("id"), TaskName: body.TaskName, AllTasks: body.AllTasks}
			err = s.call(r, protocol.MethodRestartAlloc, request, &protocol.WriteMeta{})
		}
		writeJSON(w, struct{}{}, err)
	})
	mux.HandleFunc("GET /v1/client/fs/cat/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.copyStream(w, r, protocol.MethodStreamFile, &protocol.StreamFileRequest{AllocID: r.PathValue("id"), Path: r.FormValue("path"), PlainText: true})
	})
	return mux
}

// call calls a method of the node for an HTTP request.
func (s *ownServer) call(r *http.Request, method string, request, response any) error {
	return s.cluster.Call(r.Context(), s.nodeID, method, request, response)
}

// copyStream writes the payloads of a stream of the node, or its error.
func (s *ownServer) copyStream(w http.ResponseWriter, r *http.Request, method string, request any) {
	stream, err := s.cluster.OpenStream(r.Context(), s.nodeID, method, request)
	if err != nil {
		writeJSON(w, nil, err)
		return
	}
	defer stream.Close()
	for {
		var message protocol.StreamMessage
		err := stream.Receive(&message)
		switch {
		case errors.Is(err, io.EOF):
			return
		case err == nil && message.Error != nil:
			err = errors.New(message.Error.Message)
		}
		if err != nil {
			writeJSON(w, nil, err)
			return
		}
		_, _ = w.Write(message.Payload) // the client may have gone
	}
}

// checkReply is the state of a check as servers write it: without the status code of a check that has none.
type checkReply struct {
	api.AllocCheckStatus
	StatusCode int `json:",omitempty"`
}

// writeJSON writes a reply, or an error with the status that servers give its text.
func writeJSON(w http.ResponseWriter, value any, err error) {
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value) // the client may have gone
	case strings.HasPrefix(err.Error(), "Unknown allocation"):
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
