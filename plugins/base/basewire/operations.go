package basewire

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// operationsTrailer is the trailer with the counts of a plugin process, in the form of opcount.Counts.String.
const operationsTrailer = "nomad-lite-operations"

// SendOperations adds the counts of this process to the response of the unary call with the context ctx. The host reads them with
// CallStatsCollector.Operations. It does nothing for a context of another kind.
func SendOperations(ctx context.Context) {
	_ = grpc.SetTrailer(ctx, metadata.Pairs(operationsTrailer, opcount.Read().String()))
}
