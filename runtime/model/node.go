package model

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// keptNodeEvents is how many events a node keeps.
const keptNodeEvents = 10

// AppendNodeEvent adds an event to a node, which may share its older ones with
// another version of it.
func AppendNodeEvent(n *api.Node, subsystem, message string, details map[string]string, now time.Time) {
	n.Events = append(slices.Clone(n.Events), &api.NodeEvent{
		Message: message, Subsystem: subsystem, Details: details, Timestamp: now,
	})
	if surplus := len(n.Events) - keptNodeEvents; surplus > 0 {
		n.Events = n.Events[surplus:]
	}
}
