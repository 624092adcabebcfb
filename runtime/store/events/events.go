package events

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// HeartbeatInterval is the time between two heartbeats.
const HeartbeatInterval = 30 * time.Second

// Batch is one event stream message: the matching events of one state change. A Batch without events is a heartbeat.
type Batch struct {
	Index  uint64  `json:",omitempty"`
	Events []Event `json:",omitempty"`
}

// Event is a [store.Event] in the Nomad API's JSON form.
type Event struct {
	Topic      api.Topic
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
	// Position is the event's position in its change. With Index, it identifies the event.
	Position int `json:"-"`
}

// eventSource is implemented by [store.Subscription].
type eventSource interface {
	Next(context.Context) ([]store.Event, error)
}

// StreamWithHeartbeats calls send with a heartbeat, with each change that matches the filter, and with a heartbeat after each
// HeartbeatInterval. It returns send's error, ctx's cause, or the feed's error: a slow follower that has missed changes must
// start again.
func StreamWithHeartbeats(ctx context.Context, source eventSource, filter Filter, send func(Batch) error) error {
	for {
		if err := send(Batch{}); err != nil {
			return err
		}
		if err := filter.followForDuration(ctx, HeartbeatInterval, source, send); err != nil {
			return err
		}
	}
}

// followForDuration sends each change's matching events for the duration d, and then returns nil.
func (f Filter) followForDuration(ctx context.Context, d time.Duration, source eventSource, send func(Batch) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errHeartbeatDue)
	defer cancel()
	for {
		changed, err := source.Next(ctx)
		switch {
		case errors.Is(err, errHeartbeatDue):
			return nil
		case err != nil:
			return err
		}
		if c := f.matchingBatch(changed); len(c.Events) > 0 {
			if err := send(c); err != nil {
				return err
			}
		}
	}
}

var errHeartbeatDue = errors.New("time for a sign of life")

// matchingBatch returns a Batch with one change's events that match the filter.
func (f Filter) matchingBatch(changeEvents []store.Event) Batch {
	var c Batch
	for position, e := range changeEvents {
		if f.matchesEvent(e) {
			c.Index = e.Index
			c.Events = append(c.Events, Event{e.Topic, e.Type, e.Key, e.Namespace, e.FilterKeys, e.Index, eventPayload(e), position})
		}
	}
	return c
}

// eventPayload returns an event's payload: its object, under Nomad's name for it, without secrets.
func eventPayload(e store.Event) map[string]any {
	switch o := e.Object.(type) {
	case *api.Job:
		if e.Deleted {
			return map[string]any{"Job": o, "Deleted": true}
		}
	case *api.Allocation:
		bare := *o
		bare.Job = nil
		p := map[string]any{"Allocation": &bare}
		if o.ClientDescription == model.MaxRunDurationExceeded {
			p["Timeout"], p["TimeoutReason"] = true, o.ClientDescription
		}
		return p
	case *state.HostVolume:
		return map[string]any{"Volume": o.Volume}
	case *api.ACLToken:
		bare := *o
		bare.SecretID = ""
		return map[string]any{string(e.Topic): &bare}
	case *api.Variable:
		return map[string]any{"Metadata": model.PublicVariableMetadata(o), "Deleted": e.Deleted}
	}
	return map[string]any{string(e.Topic): e.Object}
}
