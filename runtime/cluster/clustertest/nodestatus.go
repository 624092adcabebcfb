package clustertest

// The statuses of a node.
const (
	statusInitializing = "initializing"
	statusReady        = "ready"
	statusDown         = "down"
	statusDisconnected = "disconnected"
)

// statusEvent is what changes the status of a node.
type statusEvent int

const (
	heartbeatReceived statusEvent = iota // "Node.UpdateStatus" with the status ready
	heartbeatMissed                      // no heartbeat within TTL and grace
	allLost                              // disconnect.lost_after of all allocations is over
)

// nodeFacts are the facts about a node that decide its next status.
type nodeFacts struct {
	reconnectable bool // a running allocation has disconnect.lost_after
	reported      bool // no allocation of the node runs, or the node has reported since the last missed heartbeat
}

// nextStatus returns the status of a node after an event.
func nextStatus(status string, event statusEvent, facts nodeFacts) string {
	switch {
	case event == heartbeatMissed && facts.reconnectable:
		return statusDisconnected
	case event == heartbeatMissed:
		return statusDown
	case event == allLost && status == statusDisconnected:
		return statusDown
	case event == heartbeatReceived && status == statusDisconnected:
		return statusInitializing
	case event == heartbeatReceived && status == statusInitializing && !facts.reported:
		return statusInitializing
	case event == heartbeatReceived:
		return statusReady
	}
	return status
}
