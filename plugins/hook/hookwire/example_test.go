package hookwire_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// greetingHook is a hook with one hook point. The hooks of most authors use package sdk
// instead, which implements hook.Plugin.
type greetingHook struct{}

var (
	_ hook.Plugin       = greetingHook{}
	_ hook.TaskPrestart = greetingHook{}
)

func (greetingHook) Describe(context.Context) (*hook.Description, error) {
	return &hook.Description{Subscriptions: []hook.Subscription{{Point: hook.Prestart}}}, nil
}

func (greetingHook) Configure(context.Context, hook.Config) error { return nil }

func (greetingHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	return hook.TaskPrestartResponse{Env: map[string]string{"GREETING": "hello, " + req.Task.Name}}, nil
}

// RegisterServer serves a hook in the plugin process, and NewClient makes the host's
// client.
func ExampleNewClient() {
	dir, err := os.MkdirTemp("", "hook")
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
	hookwire.RegisterServer(server, greetingHook{}, greetingHook{})
	go server.Serve(listener)

	conn, err := grpc.NewClient("unix:"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	exited := make(chan struct{}) // exited: a host closes the channel when the plugin process has exited
	client := hookwire.NewClient(conn, exited)

	ctx := context.Background()
	description, err := client.Describe(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, ok := description.Subscription(hook.Prestart); ok {
		response, err := client.Prestart(ctx, hook.TaskPrestartRequest{Task: hook.Task{Name: "web"}})
		fmt.Println(response.Env["GREETING"], err)
	}
	// Output: hello, web <nil>
}
