package driverwire

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/proto/taskspb"
)

// tasksHeader is the header in the response of Capabilities by which a host finds out that the driver serves the service
// Tasks. A call of a service that a driver does not have could be logged as an error by the driver.
const tasksHeader = "nomad-lite-tasks"

// tasksDriver is a driver.Driver whose server also serves the service Tasks.
type tasksDriver interface {
	driver.Driver
	driver.ExitNotifier
	driver.TaskSampler
}

// announceTasks adds tasksHeader to the response of the call with the context ctx.
func announceTasks(ctx context.Context) error {
	return grpc.SetHeader(ctx, metadata.Pairs(tasksHeader, "1"))
}

func hasTasksHeader(header metadata.MD) bool { return len(header.Get(tasksHeader)) > 0 }

type tasksServer struct {
	taskspb.UnimplementedTasksServer
	impl tasksDriver
}
