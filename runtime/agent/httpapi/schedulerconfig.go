package httpapi

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// schedulerConfigHandler serves the routes of the scheduler configuration.
type schedulerConfigHandler struct {
	store     *store.Store
	scheduler *scheduler.Scheduler
}

func (h *schedulerConfigHandler) read(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		index := max(s.LatestTableIndex(ws, store.SchedulerConfig), 1)
		return struct {
			SchedulerConfig *api.SchedulerConfiguration
			replyMeta
		}{s.SchedulerConfig(ws), replyMeta{Index: index, KnownLeader: true}}, index, nil
	})
}

// put changes the scheduler configuration. A setting that the body does not have keeps its value. With
// the parameter cas, put changes the configuration only if it has this modify index.
func (h *schedulerConfigHandler) put(r *request) (any, error) {
	var expectedIndex *uint64
	if text, isSet := r.query["cas"]; isSet {
		index, err := strconv.ParseUint(text[0], 10, 64)
		if err != nil {
			return nil, badRequestError(fmt.Sprintf("Error parsing cas value: %v", err))
		}
		expectedIndex = &index
	}
	next := *h.store.Snapshot().SchedulerConfig(nil)
	next.SchedulerAlgorithm = "" // as in Nomad, an empty algorithm means the default
	if err := r.decodeBody(&next, maxBodyBytes, false); err != nil {
		return nil, err
	}
	if next.SchedulerAlgorithm == "" {
		next.SchedulerAlgorithm = model.NewDefaultSchedulerConfig().SchedulerAlgorithm
	}
	updated := false
	index, err := h.scheduler.UpdateConfig(r.Context(), func(stored *api.SchedulerConfiguration) (*api.SchedulerConfiguration, error) {
		if updated = expectedIndex == nil || *expectedIndex == stored.ModifyIndex; !updated {
			return nil, nil
		}
		if err := model.ValidateSchedulerConfigChange(stored, &next); err != nil {
			return nil, &statusError{http.StatusNotImplemented, err.Error()}
		}
		return &next, nil
	})
	if err != nil {
		return nil, err
	}
	return struct {
		Updated bool
		replyMeta
	}{updated, r.replyMetaOfWrite(index)}, nil
}
