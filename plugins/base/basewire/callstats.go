package basewire

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/internal/callstats"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// CallStatsCollector counts the unary calls to a plugin process, and keeps the counts that the process sends. The zero
// value is ready. All methods can be called concurrently.
type CallStatsCollector struct {
	// AfterCall is called after each call with the full name of the method. It is set before the first call, and may be
	// called concurrently. Nil means that no function is called.
	AfterCall func(method string, d time.Duration, failed bool)

	mu            sync.Mutex
	statsByMethod map[string]*callstats.Method
	operations    opcount.Counts
}

// Intercept makes a call and counts it. It is a grpc.UnaryClientInterceptor.
func (r *CallStatsCollector) Intercept(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	stats := r.beginCall(path.Base(method))
	var trailer metadata.MD
	start := time.Now()
	err := invoke(ctx, method, request, response, conn, append(opts[:len(opts):len(opts)], grpc.Trailer(&trailer))...)
	duration := time.Since(start)
	failed := err != nil && status.Code(err) != codes.Canceled
	if r.AfterCall != nil {
		r.AfterCall(method, duration, failed)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if sent := trailer.Get(operationsTrailer); len(sent) > 0 {
		r.operations = r.operations.Max(opcount.Parse(sent[0]))
	}
	stats.InProgress--
	stats.Calls++
	if failed {
		stats.Errors++
	}
	stats.Total += duration
	stats.Max = max(stats.Max, duration)
	return err
}

func (r *CallStatsCollector) beginCall(method string) *callstats.Method {
	r.mu.Lock()
	defer r.mu.Unlock()
	stats := r.statsByMethod[method]
	if stats == nil {
		if r.statsByMethod == nil {
			r.statsByMethod = make(map[string]*callstats.Method)
		}
		stats = &callstats.Method{Method: method}
		r.statsByMethod[method] = stats
	}
	stats.InProgress++
	return stats
}

// MethodStats returns the number, errors and durations of the calls of each method that was called, sorted by name.
func (r *CallStatsCollector) MethodStats() []callstats.Method {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []callstats.Method
	for _, method := range slices.Sorted(maps.Keys(r.statsByMethod)) {
		all = append(all, *r.statsByMethod[method])
	}
	return all
}

// Operations returns the newest counts that the process has sent with a response: see SendOperations. They are zero for a
// process that sends none.
func (r *CallStatsCollector) Operations() opcount.Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.operations
}
