package model

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// MaxNodeEvents is the maximum number of events per node.
const MaxNodeEvents = 10

// AppendNodeEvent adds an event to a node. It does not change the old event list, which another version of the node may share.
func AppendNodeEvent(n *api.Node, subsystem, message string, details map[string]string, now time.Time) {
	n.Events = append(slices.Clone(n.Events), &api.NodeEvent{
		Message: message, Subsystem: subsystem, Details: details, Timestamp: now,
	})
	if surplus := len(n.Events) - MaxNodeEvents; surplus > 0 {
		n.Events = n.Events[surplus:]
	}
}
