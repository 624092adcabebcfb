package agent

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/fingerprint"
)

// Extension is a service that the agent's program adds to the list. The agent works without it. Its methods are called one after
// the other.
type Extension interface {
	// Name returns the service's name in the list.
	Name() string
	// Open is called once, before the agent has allocations. If it fails, the agent does not open.
	Open(ExtensionInput) error
	// Run is called at most once, when the agent is open. It blocks until ctx ends, which is when a shutdown is requested, or until
	// it has nothing more to do.
	Run(ctx context.Context, a *Agent)
	// Close is called once after Open, also if Open has failed. The agent's allocations do not change any more.
	Close() error
}

// AllocTracer is an Extension that receives the spans of allocations.
type AllocTracer interface {
	Extension
	// NewAllocTrace returns the receiver of an allocation's spans. It may be called concurrently.
	NewAllocTrace(*api.Allocation) timeline.Trace
}

// ExtensionInput is what an Extension gets from the services before it in the list.
type ExtensionInput struct {
	DataDir  string
	NodeID   string
	Settings localnode.Settings // the node's settings, with their defaults
	Host     fingerprint.Host
	Version  string // nomad-lite version
	Logger   hclog.Logger
}

// newExtensionService returns the extension as a row of the agent's list.
func newExtensionService(e Extension) service {
	return service{
		Name: e.Name(),
		Open: func(_ context.Context, a *Agent) error {
			if tracer, ok := e.(AllocTracer); ok {
				a.newAllocTrace = tracer.NewAllocTrace
			}
			return e.Open(ExtensionInput{
				DataDir: a.dataDirectory.path, NodeID: a.nodeID, Settings: a.machine.settings, Host: a.machine.host, Version: a.config.Version, Logger: a.logger,
			})
		},
		Close: func(*Agent) error { return e.Close() },
		Run:   e.Run,
	}
}
