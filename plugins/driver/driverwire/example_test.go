package driverwire_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
)

// sleepDriver implements only the methods of a driver that the example calls. Most authors use
// package sdk instead, which implements all methods.
type sleepDriver struct{ driver.Driver }

func (sleepDriver) StartTask(_ context.Context, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	return &driver.Handle{Version: 1, Config: config, State: driver.TaskRunning}, nil, nil
}

func (sleepDriver) WaitTask(context.Context, string) (*driver.ExitResult, error) {
	return &driver.ExitResult{ExitCode: 3}, nil
}

// A plugin process calls RegisterServer to serve a driver. The host calls NewClient, and
// uses the result like a local Driver.
func ExampleNewClient() {
	dir, err := os.MkdirTemp("", "driver")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "plugin.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer()
	defer server.Stop()
	driverwire.RegisterServer(server, sleepDriver{})
	go server.Serve(listener)

	conn, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	exited := make(chan struct{}) // exited: a host closes the channel when the plugin process has exited
	d := driverwire.NewClient(conn, exited)

	ctx := context.Background()
	if _, _, err := d.StartTask(ctx, &driver.TaskConfig{ID: "1234/web/1", Name: "web"}); err != nil {
		fmt.Println(err)
		return
	}
	result, err := d.WaitTask(ctx, "1234/web/1")
	fmt.Println(result.ExitCode, result.Successful(), err)
	// Output: 3 false <nil>
}
