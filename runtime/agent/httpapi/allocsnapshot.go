package httpapi

import (
	"net/http"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// snapshotPattern is the route with which another node of the cluster reads the data of an allocation.
const snapshotPattern = "/v1/client/allocation/{id}/snapshot"

// isSnapshotPath reports whether a path is one of the route, which checks its token itself.
func isSnapshotPath(path string) bool {
	_, matches := route{pattern: snapshotPattern}.matchPath(path)
	return matches
}

// allocSnapshotHandler serves the data of ended allocations to other nodes of the cluster.
type allocSnapshotHandler struct {
	store   *store.Store
	files   AllocFiles
	cluster *Cluster // nil if the agent is not a node of a cluster
	logger  hclog.Logger
}

// send sends the data of an allocation. Each request needs the token for the allocation, also one that has all rights of
// this agent.
func (h *allocSnapshotHandler) send(r *request) (any, error) {
	if h.cluster == nil {
		return noClusterHandler(r)
	}
	if !h.cluster.IsMigrateToken(r.pathID, requestToken(r.Request)) {
		return nil, errPermissionDenied
	}
	alloc := h.store.Snapshot().Allocation(nil, r.pathID)
	if alloc == nil {
		return nil, notFoundError("Unknown allocation \"" + r.pathID + "\"")
	}
	dir, err := h.files.AllocDir(alloc.ID)
	if err != nil {
		return nil, err
	}
	var tasks []string
	if group := alloc.GetTaskGroup(); group != nil {
		for _, t := range group.Tasks {
			tasks = append(tasks, t.Name)
		}
	}
	if err := dir.WriteArchive(r.Context(), &archiveReply{r: r}, tasks); err != nil {
		h.logger.Error("data of an allocation not sent to another node", "alloc_id", alloc.ID, "client", r.RemoteAddr, "error", err)
		if !r.isReplyWritten {
			return nil, err
		}
	}
	return nil, nil
}

// archiveReply is a reply with an archive. It starts with the first write.
type archiveReply struct{ r *request }

func (a *archiveReply) Write(p []byte) (int, error) {
	if !a.r.isReplyWritten {
		a.r.isReplyWritten = true
		a.r.w.Header().Set("Content-Type", "application/octet-stream")
		a.r.w.WriteHeader(http.StatusOK)
	}
	a.r.setWriteDeadline()
	return a.r.w.Write(p)
}
