package basewire_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
)

// A plugin gets the trace context of a call in a unary call and in a stream, and none if the host has none.
func TestTraceparentReachesPlugin(t *testing.T) {
	received := make(chan string, 1)
	handle := func(_ any, stream grpc.ServerStream) error {
		received <- basewire.IncomingTraceparent(stream.Context())
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		return stream.SendMsg(new(emptypb.Empty))
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(handle))
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }() // serves until Stop
	defer server.Stop()
	grpcConn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer grpcConn.Close()
	conn := basewire.NewConn(grpcConn, nil)

	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, want := range []string{traceparent, ""} {
		ctx := t.Context()
		if want != "" {
			ctx = base.WithTraceparent(ctx, want)
		}
		if err := conn.Invoke(ctx, "/s/M", new(emptypb.Empty), new(emptypb.Empty)); err != nil {
			t.Fatal(err)
		}
		if got := <-received; got != want {
			t.Errorf("a unary call has %q, want %q", got, want)
		}
		streamCtx, cancel := context.WithCancel(ctx)
		if _, err := conn.NewStream(streamCtx, &grpc.StreamDesc{ClientStreams: true}, "/s/M"); err != nil {
			t.Fatal(err)
		}
		if got := <-received; got != want {
			t.Errorf("a stream has %q, want %q", got, want)
		}
		cancel()
	}
}
