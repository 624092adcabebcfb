package httpapi

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/node/resources/volumes"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// volumeHandler serves the routes of dynamic host volumes, and of the claims of groups.
type volumeHandler struct {
	store   *store.Store
	manager VolumeManager
}

func (h *volumeHandler) list(r *request) (any, error) {
	volumeType := cmp.Or(r.query.Get("type"), "csi")
	if volumeType != "csi" && volumeType != "host" {
		return nil, notFoundError("resource not found")
	}
	nodeID, pool, prefix := r.query.Get("node_id"), r.query.Get("node_pool"), r.query.Get("prefix")
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		var found []*api.HostVolume
		for _, v := range s.HostVolumes(ws, "") {
			o := v.Volume
			if volumeType == "host" && r.includesNamespace(o.Namespace) && strings.HasPrefix(o.NodeID, nodeID) && (pool == "" || pool == o.NodePool) &&
				(strings.HasPrefix(idWithoutHyphens(o.ID), idWithoutHyphens(prefix)) || strings.HasPrefix(o.Name, prefix)) {
				found = append(found, o)
			}
		}
		stubs, err := listPage(r, found, func(o *api.HostVolume) sortKey { return newNameSortKey(o.Namespace, o.ID) }, func(o *api.HostVolume) *api.HostVolumeStub {
			return &api.HostVolumeStub{
				Namespace: o.Namespace, ID: o.ID, Name: o.Name, PluginID: o.PluginID, NodePool: o.NodePool, NodeID: o.NodeID, CapacityBytes: o.CapacityBytes,
				State: o.State, CreateIndex: o.CreateIndex, CreateTime: o.CreateTime, ModifyIndex: o.ModifyIndex, ModifyTime: o.ModifyTime,
			}
		})
		return stubs, s.LatestTableIndex(ws, store.HostVolumes), err
	})
}

// idWithoutHyphens returns an id, or a prefix, without hyphens.
func idWithoutHyphens(id string) string { return strings.ReplaceAll(id, "-", "") }

func (h *volumeHandler) read(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		v := s.HostVolume(ws, r.pathID)
		if v == nil || !r.includesNamespace(v.Volume.Namespace) {
			return nil, s.LatestTableIndex(ws, store.HostVolumes), notFoundError(volumes.ErrNotFound.Error())
		}
		shown, index := *v.Volume, v.Volume.ModifyIndex
		for _, a := range volumes.AllocsUsingVolume(s.Reader, ws, v.Volume) {
			shown.Allocations = append(shown.Allocations, a.Stub())
			index = max(index, a.ModifyIndex)
		}
		return &shown, index, nil
	})
}

func (h *volumeHandler) create(r *request) (any, error) {
	var body api.HostVolumeCreateRequest
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	v, err := h.normalizeRequestedVolume(r, body.Volume)
	if err != nil {
		return nil, err
	}
	stored, err := h.manager.CreateOrChangeVolume(r.Context(), v)
	if err != nil {
		return nil, toVolumeStatusError(err)
	}
	r.replyIndex = stored.ModifyIndex
	return api.HostVolumeCreateResponse{Volume: stored}, nil
}

func (h *volumeHandler) register(r *request) (any, error) {
	var body api.HostVolumeRegisterRequest
	if err := r.decodeBody(&body, maxBodyBytes, false); err != nil {
		return nil, err
	}
	v, err := h.normalizeRequestedVolume(r, body.Volume)
	if err != nil {
		return nil, err
	}
	stored, err := h.manager.RegisterOrChangeVolume(r.Context(), v)
	if err != nil {
		return nil, toVolumeStatusError(err)
	}
	r.replyIndex = stored.ModifyIndex
	return api.HostVolumeRegisterResponse{Volume: stored}, nil
}

// normalizeRequestedVolume checks a volume of a request, and sets its namespace.
func (h *volumeHandler) normalizeRequestedVolume(r *request, v *api.HostVolume) (*api.HostVolume, error) {
	if v == nil {
		return nil, badRequestError("missing volume definition")
	}
	v.Allocations = nil
	if stored := h.store.Snapshot().HostVolume(nil, v.ID); stored != nil && r.requireIn(stored.Volume.Namespace) != nil {
		return nil, notFoundError(volumes.ErrNotFound.Error())
	}
	if v.Namespace == "" {
		v.Namespace = r.namespace
	}
	return v, r.requireIn(v.Namespace)
}

func (h *volumeHandler) delete(r *request) (any, error) {
	force, err := r.boolParam("force")
	if err != nil {
		return nil, badRequestError(err.Error())
	}
	if err := h.manager.DeleteUnusedVolume(r.Context(), r.namespace, r.pathID, force); err != nil {
		return nil, toVolumeStatusError(err)
	}
	return r.replyMetaOfWrite(h.store.Snapshot().Index()), nil // the client expects an object
}

// toVolumeStatusError returns the reply for an error of a volume.
func toVolumeStatusError(err error) error {
	var invalid *volumes.RequestError
	switch {
	case errors.Is(err, volumes.ErrNotFound), errors.Is(err, volumes.ErrClaimNotFound):
		return notFoundError(err.Error())
	case errors.As(err, &invalid):
		return badRequestError(err.Error())
	}
	return &statusError{http.StatusInternalServerError, err.Error()}
}

func (h *volumeHandler) claims(r *request) (any, error) {
	jobID, group, name := r.query.Get("job_id"), r.query.Get("task_group"), r.query.Get("volume_name")
	return r.blockingListQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		found := slices.DeleteFunc(s.VolumeClaims(ws), func(c *api.TaskGroupHostVolumeClaim) bool {
			return !r.includesNamespace(c.Namespace) || jobID != "" && c.JobID != jobID || group != "" && c.TaskGroupName != group || name != "" && c.VolumeName != name
		})
		list, err := listPage(r, found, func(c *api.TaskGroupHostVolumeClaim) sortKey { return newNameSortKey(c.Namespace, c.ID) }, objectAsStub)
		return list, s.LatestTableIndex(ws, store.VolumeClaims), err
	})
}

func (h *volumeHandler) deleteClaim(r *request) (any, error) {
	if err := h.manager.DeleteClaim(r.Context(), r.namespace, r.pathID); err != nil {
		return nil, toVolumeStatusError(err)
	}
	r.replyIndex = h.store.Snapshot().Index()
	return nil, nil
}
