package driverwire

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// BenchmarkEmptyUnaryCall is the minimum cost: an empty call over a unix socket.
func BenchmarkEmptyUnaryCall(b *testing.B) {
	p := serveOnSocket(b, func(s grpc.ServiceRegistrar) { grpc_health_v1.RegisterHealthServer(s, health.NewServer()) })
	c := grpc_health_v1.NewHealthClient(p.conn)
	for b.Loop() {
		if _, err := c.Check(b.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStartTask sends a task of usual size and receives its handle: 60 variables
// and half a kilobyte of config, which the handle repeats unless the host omits it.
func BenchmarkStartTask(b *testing.B) {
	b.Run("config in handle", func(b *testing.B) { benchmarkStartTask(b, b.Context()) })
	b.Run("config omitted", func(b *testing.B) { benchmarkStartTask(b, OmitHandleConfig(b.Context())) })
}

func benchmarkStartTask(b *testing.B, ctx context.Context) {
	config := &driver.TaskConfig{
		ID: "1f2e3d4c-0000-1111-2222-333344445555/web/12345678", Name: "web", AllocID: "1f2e3d4c-0000-1111-2222-333344445555",
		DriverConfig: make([]byte, 512),
		Env:          map[string]string{},
		Resources:    &driver.Resources{CPUShares: 100, MemoryMB: 300, Ports: []driver.PortMapping{{Label: "http", Value: 20000}}},
	}
	for i := range 60 {
		config.Env[fmt.Sprintf("NOMAD_VARIABLE_%d", i)] = "a value of some length, as a path has"
	}
	d, _ := newClientOf(b, &fakeDriver{handle: &driver.Handle{Version: 1, State: driver.TaskRunning, DriverState: make([]byte, 128)}})
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := d.StartTask(ctx, config); err != nil {
			b.Fatal(err)
		}
	}
}
