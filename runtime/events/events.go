package events

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Pause is the time between two signs of life.
const Pause = 30 * time.Second

// Change is what one change of the state means to a follower. One without events
// is a sign of life.
type Change struct {
	Index  uint64  `json:",omitempty"`
	Events []Event `json:",omitempty"`
}

// Event is one event as clients see it.
type Event struct {
	Topic      api.Topic
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
}

// feed is a reader of what has changed.
type feed interface {
	Next(context.Context) ([]store.Event, error)
}

// Follow calls send with a sign of life, with each change that the filter lets
// through, and with a sign of life from time to time. It returns the error of
// send, the cause of the end of ctx, or that of the feed: a follower who is so
// slow that he has missed something must begin again.
func Follow(ctx context.Context, from feed, f Filter, send func(Change) error) error {
	for {
		if err := send(Change{}); err != nil {
			return err
		}
		if err := f.followFor(ctx, Pause, from, send); err != nil {
			return err
		}
	}
}

// followFor follows for a while.
func (f Filter) followFor(ctx context.Context, d time.Duration, from feed, send func(Change) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errPause)
	defer cancel()
	for {
		changed, err := from.Next(ctx)
		switch {
		case errors.Is(err, errPause):
			return nil
		case err != nil:
			return err
		}
		if c := f.of(changed); len(c.Events) > 0 {
			if err := send(c); err != nil {
				return err
			}
		}
	}
}

var errPause = errors.New("time for a sign of life")

// of returns what the filter lets through of a change.
func (f Filter) of(changed []store.Event) Change {
	var c Change
	for _, e := range changed {
		if f.matches(e) {
			c.Index = e.Index
			c.Events = append(c.Events, Event{e.Topic, e.Type, e.Key, e.Namespace, e.FilterKeys, e.Index, payload(e)})
		}
	}
	return c
}

// payload is the object of an event under its name. What is secret is left out.
func payload(e store.Event) map[string]any {
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
	case *api.Variable:
		return map[string]any{"Metadata": model.VariableMetadata(o), "Deleted": e.Deleted}
	}
	return map[string]any{string(e.Topic): e.Object}
}
