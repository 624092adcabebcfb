package basewire

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

func TestCallStatsCollectorCountsCalls(t *testing.T) {
	var r CallStatsCollector
	call := func(method string, err error) {
		_ = r.Intercept(t.Context(), "/hashicorp.nomad.plugins.drivers.proto.Driver/"+method, nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				time.Sleep(time.Millisecond)
				return err
			})
	}
	call("StopTask", nil)
	call("StopTask", errors.New("no such task"))
	waiting, release := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Intercept(t.Context(), "/x/WaitTask", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			close(waiting)
			<-release
			return nil
		})
	}()
	<-waiting
	methods := r.MethodStats()
	close(release)
	<-done
	if len(methods) != 2 {
		t.Fatalf("got %+v", methods)
	}
	stop, wait := methods[0], methods[1]
	if stop.Method != "StopTask" || stop.Calls != 2 || stop.Errors != 1 || stop.InProgress != 0 || stop.Max < time.Millisecond || stop.Total < 2*time.Millisecond {
		t.Errorf("StopTask: %+v", stop)
	}
	if wait.Method != "WaitTask" || wait.Calls != 0 || wait.InProgress != 1 {
		t.Errorf("WaitTask: %+v", wait)
	}
}

func TestOperationsAreTheNewestThatTheProcessHasSent(t *testing.T) {
	var r CallStatsCollector
	for _, sent := range []string{"fork=2 mount=7", "fork=1 mount=4", ""} {
		err := r.Intercept(t.Context(), "/x/StartTask", nil, nil, nil, func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
			for _, o := range opts {
				if trailer, ok := o.(grpc.TrailerCallOption); ok && sent != "" {
					*trailer.TrailerAddr = metadata.Pairs(operationsTrailer, sent)
				}
			}
			return nil
		})
		if want := (opcount.Counts{opcount.Fork: 2, opcount.Mount: 7}); err != nil || r.Operations() != want {
			t.Errorf("after %q: got %v, error %v, want %v", sent, r.Operations(), err, want)
		}
	}
}
