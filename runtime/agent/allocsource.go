package agent

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/agent/clusternode"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/orphans"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/workloaddata"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

// allocSource is what assigns allocations to the node, and what has their services, tokens and variables: the agent's scheduler
// and state, or a cluster's servers.
type allocSource struct {
	reports interface {
		ApplyAllocReports(context.Context, ...model.AllocReport) (index uint64, err error)
	}
	storeAdopted func(ctx context.Context, allocs []*api.Allocation, edit func(*store.Txn)) error

	services services.Registry
	tokens   builtinhooks.TokenIssuer
	data     workloaddata.Source

	awaitNewStart      taskrunner.AwaitNewStartFunc                     // nil if tasks start at once
	findRemotePrevious func(*api.Allocation) builtinhooks.PreviousAlloc // nil if there are no other nodes
	serverAddrs        func() []string                                  // nil if there are no servers
}

func newLocalAllocSource(s *store.Store, sched *scheduler.Scheduler, issuer *identity.Issuer) *allocSource {
	return &allocSource{
		reports: sched, storeAdopted: sched.StoreAdoptedAllocs,
		services: s, tokens: issuer, data: workloaddata.StoreSource{Store: s},
	}
}

// newClusterAllocSource returns what the servers give to allocations. A new start of an unknown allocation waits for the end of
// its tasks.
func newClusterAllocSource(n *clusternode.Node, cleaner *orphans.Cleaner) *allocSource {
	return &allocSource{
		reports: n.Replica(), storeAdopted: n.Replica().StoreAdoptedAllocs,
		services: n.Registrations(), tokens: n.Identities(), data: n.Data(),
		awaitNewStart: func(ctx context.Context, allocID string, onWait func(spanName string, event *api.TaskEvent)) error {
			err := cleaner.AwaitUnknownTasksEnded(ctx, allocID, func() { onWait(tracespan.WaitUnknownTasks, model.EventWaitingForUnknownTasks()) })
			if err != nil {
				return err
			}
			return n.Replica().AwaitNewStart(ctx, allocID, onWait)
		},
		findRemotePrevious: n.Fetcher().Previous,
		serverAddrs:        n.ServerAddrs,
	}
}
