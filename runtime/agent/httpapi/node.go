package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/acl"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// nodeHandler serves the routes of nodes, and the metadata of the node.
type nodeHandler struct {
	agent         *localAgent
	store         *store.Store
	scheduler     *scheduler.Scheduler
	host          *fingerprint.Host
	metadata      Metadata
	operatorToken Secret // the API token that clients other than those of a unix socket need; empty if none
}

// nodeStub is an entry of a list of nodes. It adds the fields that the client's type lacks.
type nodeStub struct {
	*api.NodeListStub
	HostVolumes       map[string]hostVolumeView
	NodeResources     *nodeResourcesView         `json:",omitempty"`
	ReservedResources *nodeReservedResourcesView `json:",omitempty"`
}

func (h *nodeHandler) list(r *request) (any, error) { return h.listNodesOfPool(r, api.NodePoolAll) }

// listNodesOfPool lists the nodes of a pool.
func (h *nodeHandler) listNodesOfPool(r *request, pool string) (any, error) {
	withOS, err := r.boolParam("os")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	withResources, err := r.boolParam("resources")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.Nodes(ws, r.query.Get("prefix")), func(n *api.Node) bool { return !isInNodePool(n, pool) })
		stubs, err := listPage(r, found, func(n *api.Node) sortKey { return newNameSortKey("", n.ID) }, func(n *api.Node) nodeStub {
			address, _, err := net.SplitHostPort(n.HTTPAddr)
			if err != nil {
				address = n.HTTPAddr
			}
			stub := nodeStub{NodeListStub: &api.NodeListStub{
				Address: address, ID: n.ID, Datacenter: n.Datacenter, Name: n.Name, NodeClass: n.NodeClass, NodePool: n.NodePool,
				Version: n.Attributes["nomad.version"], Drain: n.DrainStrategy != nil, SchedulingEligibility: n.SchedulingEligibility,
				Status: n.Status, StatusDescription: n.StatusDescription, Drivers: n.Drivers, LastDrain: n.LastDrain,
				CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
			}, HostVolumes: newHostVolumeViews(n.HostVolumes)}
			if withOS {
				stub.Attributes = map[string]string{"os.name": n.Attributes["os.name"]}
			}
			if withResources {
				stub.NodeResources, stub.ReservedResources = newNodeResourcesView(n.NodeResources, *h.host), newNodeReservedResourcesView(n.ReservedResources, *h.host)
			}
			return stub
		})
		return stubs, s.LatestTableIndex(ws, store.Nodes), err
	})
}

func (h *nodeHandler) read(r *request) (any, error) {
	if err := checkIDIsUUID("node", r.pathID); err != nil {
		return nil, err
	}
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		n := s.Node(ws, r.pathID)
		if n == nil {
			return nil, s.LatestTableIndex(ws, store.Nodes), notFoundError("node not found")
		}
		if h.operatorToken != "" && r.Context().Value(unixSocketContextKey{}) != nil {
			// A client that has an address of the node connects to it for logs and exec sessions. Without
			// the address the client uses its current connection. The address is omitted for clients that
			// need no token here, because the node's address requires one and the client would not retry.
			here := *n
			here.HTTPAddr = ""
			n = &here
		}
		return newNodeView(n, *h.host), n.ModifyIndex, nil
	})
}

func (h *nodeHandler) allocations(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		return emptyIfNil(sortByCreation(s.AllocationsByNode(ws, r.pathID))), s.LatestTableIndex(ws, store.Allocations), nil
	})
}

// nodeWriteReply is the reply to a change of a node.
type nodeWriteReply struct {
	EvalIDs                          []string
	EvalCreateIndex, NodeModifyIndex uint64
	replyMeta
}

// newNodeWriteReply returns the reply to a change of the node. Nomad replies with 500 to invalid changes,
// including "node not found".
func (r *request) newNodeWriteReply(out scheduler.NodeRequestOutcome, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return nodeWriteReply{out.EvalIDs, out.EvalCreateIndex, out.NodeModifyIndex, r.replyMetaOfWrite(out.Index)}, nil
}

// checkNodeIDIsThisNode rejects a change of a node other than this one.
func (h *nodeHandler) checkNodeIDIsThisNode(r *request) error {
	if r.pathID != h.agent.nodeID {
		return &statusError{http.StatusInternalServerError, "node not found"}
	}
	return nil
}

func (h *nodeHandler) setEligibility(r *request) (any, error) {
	var body api.NodeUpdateEligibilityRequest
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if err := h.checkNodeIDIsThisNode(r); err != nil {
		return nil, err
	}
	return r.newNodeWriteReply(h.scheduler.SetNodeEligibility(r.Context(), body.Eligibility))
}

func (h *nodeHandler) drain(r *request) (any, error) {
	var body api.NodeUpdateDrainRequest
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if err := h.checkNodeIDIsThisNode(r); err != nil {
		return nil, err
	}
	return r.newNodeWriteReply(h.scheduler.StartOrEndDrain(r.Context(), scheduler.DrainRequest{Spec: body.DrainSpec, MarkEligible: body.MarkEligible, Meta: body.Meta}))
}

// acceptEvaluateWithoutEffect does nothing: blocked evaluations are processed whenever the node changes.
func (h *nodeHandler) acceptEvaluateWithoutEffect(r *request) (any, error) {
	if err := h.checkNodeIDIsThisNode(r); err != nil {
		return nil, err
	}
	n := h.store.Snapshot().Node(nil, r.pathID)
	if n == nil {
		return nil, &statusError{http.StatusInternalServerError, "node not found"}
	}
	return nodeWriteReply{EvalIDs: []string{}, NodeModifyIndex: n.ModifyIndex}, nil
}

func (h *nodeHandler) rejectPurge(r *request) (any, error) {
	if err := h.checkNodeIDIsThisNode(r); err != nil {
		return nil, err
	}
	return nil, &statusError{http.StatusInternalServerError, "this agent is its only node, which cannot be purged: stop the agent and remove its data directory"}
}

func (h *nodeHandler) readMetadata(r *request) (any, error) {
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	return h.metadata.Meta(), nil
}

func (h *nodeHandler) setMetadata(r *request) (any, error) {
	var body api.NodeMetaApplyRequest
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	if body.NodeID != "" && body.NodeID != h.agent.nodeID {
		return nil, notFoundError("Unknown node " + body.NodeID)
	}
	if len(body.Meta) == 0 {
		return nil, badRequestError("missing required Meta object")
	}
	for key := range body.Meta {
		if !isDottedIdentifier(key) {
			return nil, badRequestError(fmt.Sprintf("%q is invalid; metadata keys must be valid dotted hcl identifiers", key))
		}
	}
	if err := h.metadata.SetMeta(r.Context(), body.Meta); err != nil {
		return nil, err
	}
	return h.metadata.Meta(), nil
}

// isDottedIdentifier reports whether a key consists of HCL identifiers with dots between them, so that a job can name the key
// in an interpolation.
func isDottedIdentifier(key string) bool {
	for part := range strings.SplitSeq(key, ".") {
		if !hclsyntax.ValidIdentifier(part) {
			return false
		}
	}
	return true
}

// nodePoolHandler serves the routes of node pools.
type nodePoolHandler struct {
	store       *store.Store
	nodeHandler *nodeHandler
	jobReader   *jobReadHandler
}

// isInNodePool reports whether a node is in a pool; all nodes are in "all".
func isInNodePool(n *api.Node, pool string) bool {
	return pool == api.NodePoolAll || n.NodePool == pool
}

// listNodePools returns the builtin node pools and the pools of the nodes; other pools do not exist.
func listNodePools(s *store.Snapshot, ws store.WatchSet) []*api.NodePool {
	all := []*api.NodePool{
		{Name: api.NodePoolAll, Description: "Node pool with all nodes in the cluster.", CreateIndex: 1, ModifyIndex: 1},
		{Name: api.NodePoolDefault, Description: "Default node pool.", CreateIndex: 1, ModifyIndex: 1},
	}
	for _, n := range s.Nodes(ws, "") {
		if !slices.ContainsFunc(all, func(p *api.NodePool) bool { return p.Name == n.NodePool }) {
			all = append(all, &api.NodePool{Name: n.NodePool, CreateIndex: n.CreateIndex, ModifyIndex: n.CreateIndex})
		}
	}
	return all
}

// poolWithHash is a node pool in the server's JSON format.
type poolWithHash struct {
	*poolWithoutMethods
	Hash []byte
}

// poolWithoutMethods has no methods, so that MarshalJSON of the client's type is not used: the client writes
// durations as texts, the server as numbers.
type poolWithoutMethods api.NodePool

func newNodePoolView(p *api.NodePool) poolWithHash {
	bare := (*poolWithoutMethods)(p)
	content := *bare
	content.CreateIndex, content.ModifyIndex = 0, 0
	return poolWithHash{bare, hashJSON(content)}
}

func (h *nodePoolHandler) list(r *request) (any, error) {
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(listNodePools(s, ws), func(p *api.NodePool) bool {
			return !strings.HasPrefix(p.Name, r.query.Get("prefix")) || !r.rights.acl.NodePool(p.Name, acl.Read) // pools are no objects of the state
		})
		all, err := listPage(r, found, func(p *api.NodePool) sortKey { return newNameSortKey("", p.Name) }, newNodePoolView)
		return all, s.LatestTableIndex(ws, store.Nodes), err
	})
}

// findNodePool returns the node pool in the path.
func findNodePool(r *request, s *store.Snapshot, ws store.WatchSet) (*api.NodePool, error) {
	for _, p := range listNodePools(s, ws) {
		if p.Name == r.pathID {
			return p, nil
		}
	}
	return nil, notFoundError("node pool not found")
}

func (h *nodePoolHandler) read(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		p, err := findNodePool(r, s, ws)
		if err != nil {
			return nil, s.LatestTableIndex(ws, store.Nodes), err
		}
		return newNodePoolView(p), s.LatestTableIndex(ws, store.Nodes), nil
	})
}

func (h *nodePoolHandler) listNodes(r *request) (any, error) {
	s, err := r.snapshot(h.store, nil)
	if err == nil {
		_, err = findNodePool(r, s, nil)
	}
	if err != nil {
		return nil, err
	}
	return h.nodeHandler.listNodesOfPool(r, r.pathID)
}

func (h *nodePoolHandler) listJobs(r *request) (any, error) {
	s, err := r.snapshot(h.store, nil)
	if err == nil {
		_, err = findNodePool(r, s, nil)
	}
	if err != nil {
		return nil, err
	}
	return h.jobReader.listMatching(r, func(j *api.Job) bool { return r.pathID == api.NodePoolAll || pointer.Value(j.NodePool) == r.pathID })
}
