package httpapi

import (
	"errors"
	"os"
	"reflect"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/events"
)

// eventsPath is the path of the event stream. For this path Nomad has a different message for an invalid
// index.
const eventsPath = "/v1/event/stream"

// eventHandler serves the event stream.
type eventHandler struct {
	store  *store.Store
	node   Node
	logger hclog.Logger
}

// streamEvents streams events until the client disconnects, the agent shuts down, or the client
// has missed events because it reads too slowly.
func (h *eventHandler) streamEvents(r *request) (any, error) {
	filter, err := events.ParseFilter(r.query["topic"], r.namespace)
	if err != nil {
		return nil, badRequestError("Invalid topic query: " + err.Error())
	}
	r.w.Header().Set("Cache-Control", "no-cache")
	s := r.startStream("application/json")
	err = events.StreamWithHeartbeats(r.Context(), h.store.Subscribe(r.minIndex), filter, func(c events.Batch) error {
		if r.rights.isReadOnly {
			of := len(c.Events)
			c.Events = slices.DeleteFunc(c.Events, func(e events.Event) bool { return !readOnlyTopics[e.Topic] })
			if of > 0 && len(c.Events) == 0 {
				return nil
			}
		}
		for _, e := range c.Events {
			if alloc, ok := e.Payload["Allocation"].(*api.Allocation); ok && alloc.RescheduleTracker != nil {
				shown := eventAllocation{Allocation: alloc}
				if stored := h.store.Snapshot().Allocation(nil, alloc.ID); stored != nil {
					known := *stored
					known.RescheduleTracker = alloc.RescheduleTracker
					shown.delayByRescheduleEvent = rescheduleDelays(&known)
				}
				e.Payload["Allocation"] = shown
			}
			if n, ok := e.Payload["Node"].(*api.Node); ok {
				e.Payload["Node"] = newNodeView(n, h.node.Host())
			}
			if d, ok := e.Payload["Deployment"].(*api.Deployment); ok {
				e.Payload["Deployment"] = newDeploymentView(h.store.Snapshot(), d)
			}
		}
		line, err := appendNomadJSON(nil, reflect.ValueOf(c), r.rights.isReadOnly)
		if err == nil {
			_, err = s.Write(append(line, '\n'))
		}
		return err
	})
	if errors.Is(err, store.ErrLagged) || errors.Is(err, os.ErrDeadlineExceeded) {
		h.logger.Info("event stream cut off: the client does not read", "client", r.RemoteAddr, "error", err)
	}
	return nil, nil
}
