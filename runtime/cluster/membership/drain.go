package membership

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
)

// ErrDrainCanceled means an operator has ended the node's drain before it was complete.
var ErrDrainCanceled = errors.New("an operator has canceled the drain")

// Drain makes the servers drain the node, and blocks until they have marked all allocations the drain moves. Allocations marked
// last can still run then. Drain repeats calls while no server can be reached. It returns ctx's cause if ctx ends first. The node
// stays ineligible.
func (m *Member) Drain(ctx context.Context, s protocol.DrainStrategy) error {
	for {
		request := protocol.UpdateNodeDrainRequest{
			NodeID: m.config.NodeID, DrainStrategy: &s, Meta: map[string]string{"message": "shutting down"}, WriteOptions: m.writeOptions(identity),
		}
		err := m.config.Pool.Call(ctx, protocol.MethodUpdateNodeDrain, &request, &protocol.WriteMeta{})
		if err == nil {
			break
		}
		if err := m.waitRetryIfUnreachable(ctx, err); err != nil {
			return err
		}
	}
	var query servers.Query
	for {
		request := protocol.GetNodeRequest{NodeID: m.config.NodeID, ReadOptions: protocol.ReadOptions{Region: m.config.Region, AuthToken: m.Token()}}
		block := query.Next(&request.ReadOptions)
		var response protocol.GetNodeResponse
		err := m.config.Pool.CallBlocking(ctx, block, protocol.MethodGetNode, &request, &response)
		switch {
		case err != nil:
			query.Restart()
			if err := m.waitRetryIfUnreachable(ctx, err); err != nil {
				return err
			}
		case !query.IsNew(ctx, response.Index):
		case response.Node == nil:
			return errors.New("the servers no longer have this node")
		case response.Node.DrainStrategy == nil && response.Node.LastDrain != nil && response.Node.LastDrain.Status == api.DrainStatusCanceled:
			return ErrDrainCanceled
		case response.Node.DrainStrategy == nil:
			return nil
		}
	}
}

// waitRetryIfUnreachable waits until a call that failed with err can be repeated. It returns err if the servers have refused the
// call, and ctx's cause if ctx ends.
func (m *Member) waitRetryIfUnreachable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !servers.IsUnreachable(err):
		return err
	}
	return m.config.Pool.WaitRetry(ctx, 2*shortDelay)
}
