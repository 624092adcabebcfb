package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

const allocPath = "/v1/client/allocation/"

// callAlloc passes a request about an allocation to the API. operation is the last part of the path.
func (n *node) callAlloc(ctx context.Context, method, allocID, operation string, query url.Values, body, reply any) error {
	if err := checkAllocID(allocID); err != nil {
		return err
	}
	return n.call(ctx, apiRequest{method, allocPath + allocID + operation, query, body}, reply)
}

func (n *node) signalAlloc(ctx context.Context, r *protocol.SignalAllocRequest) (*protocol.WriteMeta, error) {
	body := api.AllocSignalRequest{Task: r.Task, Signal: r.Signal}
	return &protocol.WriteMeta{}, n.callAlloc(ctx, http.MethodPut, r.AllocID, "/signal", nil, body, nil)
}

func (n *node) restartAlloc(ctx context.Context, r *protocol.RestartAllocRequest) (*protocol.WriteMeta, error) {
	body := api.AllocationRestartRequest{TaskName: r.TaskName, AllTasks: r.AllTasks}
	return &protocol.WriteMeta{}, n.callAlloc(ctx, http.MethodPut, r.AllocID, "/restart", nil, body, nil)
}

func (n *node) allocStats(ctx context.Context, r *protocol.AllocStatsRequest) (*protocol.AllocStatsResponse, error) {
	stats := &api.AllocResourceUsage{}
	if err := n.callAlloc(ctx, http.MethodGet, r.AllocID, "/stats", url.Values{"task": {r.Task}}, nil, stats); err != nil {
		return nil, err
	}
	// Clients of servers read the memory and processor fields without a check.
	stats.ResourceUsage = completeUsage(stats.ResourceUsage)
	for name, task := range stats.Tasks {
		if task == nil {
			delete(stats.Tasks, name)
			continue
		}
		task.ResourceUsage = completeUsage(task.ResourceUsage)
		for pid, usage := range task.Pids {
			task.Pids[pid] = completeUsage(usage)
		}
	}
	return &protocol.AllocStatsResponse{Stats: stats}, nil
}

// completeUsage returns usage without nil fields.
func completeUsage(usage *api.ResourceUsage) *api.ResourceUsage {
	if usage == nil {
		usage = &api.ResourceUsage{}
	}
	if usage.MemoryStats == nil {
		usage.MemoryStats = &api.MemoryStats{}
	}
	if usage.CpuStats == nil {
		usage.CpuStats = &api.CpuStats{}
	}
	return usage
}

func (n *node) allocChecks(ctx context.Context, r *protocol.AllocRequest) (*protocol.AllocChecksResponse, error) {
	reply := &protocol.AllocChecksResponse{}
	return reply, n.callAlloc(ctx, http.MethodGet, r.AllocID, "/checks", nil, nil, &reply.Results)
}

// errNotCollectable is Nomad's text for an allocation that runs, or is not on the node.
//
//lint:ignore ST1005 the text is Nomad's
var errNotCollectable = errors.New("No such allocation on client, or allocation not eligible for GC")

func (n *node) collectAlloc(ctx context.Context, r *protocol.AllocRequest) (*protocol.WriteMeta, error) {
	err := n.callAlloc(ctx, http.MethodPut, r.AllocID, "/gc", nil, nil, nil)
	var rejected *replyError
	if errors.As(err, &rejected) && rejected.code == http.StatusNotFound {
		err = errNotCollectable
	}
	return &protocol.WriteMeta{}, err
}

func (n *node) collectAllocs(ctx context.Context, r *protocol.NodeRequest) (*protocol.WriteMeta, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	return &protocol.WriteMeta{}, n.call(ctx, apiRequest{http.MethodPut, "/v1/client/gc", nil, nil}, nil)
}

func rejectPause(context.Context, *protocol.AllocRequest) (*protocol.WriteMeta, error) {
	return nil, &replyError{http.StatusNotImplemented, "this node does not pause tasks: task schedules are a feature of Nomad Enterprise"}
}

func (n *node) hostStats(ctx context.Context, r *protocol.NodeRequest) (*protocol.HostStatsResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	stats := &protocol.HostStats{}
	if err := n.call(ctx, apiRequest{http.MethodGet, "/v1/client/stats", nil, nil}, stats); err != nil {
		return nil, err
	}
	if stats.Memory == nil {
		stats.Memory = &api.HostMemoryStats{}
	}
	if stats.AllocDirStats == nil {
		stats.AllocDirStats = &api.HostDiskStats{}
	}
	return &protocol.HostStatsResponse{HostStats: stats}, nil
}

func (n *node) listFiles(ctx context.Context, r *protocol.FileRequest) (*protocol.ListFilesResponse, error) {
	if kind := secretDirKind(r.Path); kind != "" {
		return nil, &replyError{http.StatusForbidden, fmt.Sprintf("Reading %s file prohibited: %s", kind, r.Path)}
	}
	reply := &protocol.ListFilesResponse{}
	return reply, n.callFiles(ctx, "ls", r, &reply.Files)
}

func (n *node) statFile(ctx context.Context, r *protocol.FileRequest) (*protocol.StatFileResponse, error) {
	reply := &protocol.StatFileResponse{}
	return reply, n.callFiles(ctx, "stat", r, &reply.Info)
}

func (n *node) callFiles(ctx context.Context, operation string, r *protocol.FileRequest, reply any) error {
	if err := checkAllocID(r.AllocID); err != nil {
		return err
	}
	return n.call(ctx, apiRequest{http.MethodGet, "/v1/client/fs/" + operation + "/" + r.AllocID, url.Values{"path": {r.Path}}, nil}, reply)
}

// secretDirKind returns the kind of secret directory that contains the path, or "". It ignores links: a link shows only the names
// of secrets, and the API protects their content.
func secretDirKind(p string) string {
	elements := strings.Split(path.Clean("/"+p), "/")
	switch {
	case len(elements) < 3: // an empty element, and a task's directory
		return ""
	case strings.EqualFold(elements[2], "secrets"):
		return "secret"
	case strings.EqualFold(elements[2], "private"):
		return "private"
	}
	return ""
}

const metadataPath = "/v1/client/metadata"

func (n *node) applyNodeMeta(ctx context.Context, r *protocol.ApplyNodeMetaRequest) (*protocol.NodeMetaResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	reply := &protocol.NodeMetaResponse{}
	return reply, n.call(ctx, apiRequest{http.MethodPost, metadataPath, nil, api.NodeMetaApplyRequest{Meta: r.Meta}}, reply)
}

func (n *node) readNodeMeta(ctx context.Context, r *protocol.NodeRequest) (*protocol.NodeMetaResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	reply := &protocol.NodeMetaResponse{}
	return reply, n.call(ctx, apiRequest{http.MethodGet, metadataPath, nil, nil}, reply)
}

func (n *node) getNodeIdentity(_ context.Context, r *protocol.NodeRequest) (*protocol.NodeIdentityResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	claims, err := n.IdentityClaims()
	return &protocol.NodeIdentityResponse{Claims: claims}, err
}

func (n *node) renewNodeIdentity(_ context.Context, r *protocol.NodeRequest) (*protocol.RenewNodeIdentityResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	n.RenewIdentity()
	return &protocol.RenewNodeIdentityResponse{}, nil
}

func (n *node) agentHost(ctx context.Context, r *protocol.AgentRequest) (*protocol.AgentHostResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	reply := &protocol.AgentHostResponse{}
	return reply, n.call(ctx, apiRequest{http.MethodGet, "/v1/agent/host", nil, nil}, reply)
}

// profileHeaders are the profile headers repeated in the reply.
var profileHeaders = []string{"Content-Type", "Content-Disposition", "X-Content-Type-Options"}

func (n *node) agentProfile(ctx context.Context, r *protocol.AgentProfileRequest) (*protocol.AgentProfileResponse, error) {
	if err := n.checkNodeID(r.NodeID); err != nil {
		return nil, err
	}
	name := r.Profile
	switch r.ReqType {
	case protocol.ProfileCPU:
		name = "profile"
	case protocol.ProfileCommand, protocol.ProfileTrace:
		name = r.ReqType
	case protocol.ProfileLookup:
	default:
		return nil, &replyError{http.StatusBadRequest, fmt.Sprintf("unknown type of profile %q", r.ReqType)}
	}
	if name == "" || strings.Contains(name, "/") {
		return nil, &replyError{http.StatusNotFound, "Unknown profile"}
	}
	query := url.Values{"seconds": {strconv.Itoa(r.Seconds)}, "debug": {strconv.Itoa(r.Debug)}, "gc": {strconv.Itoa(r.GC)}}
	header, body, err := n.read(ctx, apiRequest{http.MethodGet, "/v1/agent/pprof/" + name, query, nil})
	if err != nil {
		return nil, err
	}
	reply := &protocol.AgentProfileResponse{AgentID: n.NodeID, Payload: body, HTTPHeaders: map[string]string{}}
	for _, key := range profileHeaders {
		if value := header.Get(key); value != "" {
			reply.HTTPHeaders[key] = value
		}
	}
	return reply, nil
}
