package programs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// shellDriverNetworkDir returns the directory for the network files of the shell driver. If the directory does not
// exist, the driver creates no networks.
func shellDriverNetworkDir() networkFileDir {
	cmdline, _ := os.ReadFile("/proc/self/cmdline") // testscript.Main has shortened os.Args[0]
	program, _, _ := strings.Cut(string(cmdline), "\x00")
	return networkFileDir(filepath.Join(filepath.Dir(filepath.Dir(program)), "networks"))
}

// serveShellDriver serves an external driver with the SDK. A task whose config sets crash makes the plugin process exit
// when the task starts. The start of a task whose config sets hang never returns.
func serveShellDriver() { sdk.ServeDriver(&shellDriverPlugin{}) }

type shellDriverPlugin struct{}

func (*shellDriverPlugin) Info() sdk.DriverInfo {
	capabilities := driver.Capabilities{SendSignals: true, Exec: true}
	if _, err := os.Stat(string(shellDriverNetworkDir())); err == nil {
		capabilities.MustCreateNetwork = true
		capabilities.NetworkIsolationModes = []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}
	}
	return sdk.DriverInfo{
		Name: "shell", Version: "0.1.0",
		TaskSchema: hclspec.Object(map[string]*hclspec.Spec{
			"command": hclspec.Attr("command", "string", true),
			"args":    hclspec.Attr("args", "list(string)", false),
			"crash":   hclspec.Attr("crash", "bool", false),
			"hang":    hclspec.Attr("hang", "bool", false),
		}),
		Capabilities: capabilities,
	}
}

func (*shellDriverPlugin) CreateNetwork(_ context.Context, req sdk.CreateNetworkRequest) (sdk.CreateNetworkResponse, error) {
	return shellDriverNetworkDir().createNetworkFile(req)
}

func (*shellDriverPlugin) DestroyNetwork(_ context.Context, req sdk.DestroyNetworkRequest) error {
	return shellDriverNetworkDir().removeNetworkFile(req)
}

func (*shellDriverPlugin) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config struct {
		Command string   `codec:"command"`
		Args    []string `codec:"args"`
		Crash   bool     `codec:"crash"`
		Hang    bool     `codec:"hang"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	if config.Crash {
		os.Exit(3)
	}
	if config.Hang {
		return nil, hangForever()
	}
	request := *start
	if n := start.NetworkIsolation; n != nil {
		if _, err := os.Stat(n.Path); err != nil {
			return nil, fmt.Errorf("network of the task: %w", err)
		}
		request.NetworkIsolation = nil // its path is a regular file, which process.Start cannot enter as a namespace
	}
	return process.Start(ctx, &request, process.Command{Path: config.Command, Args: config.Args})
}

func (*shellDriverPlugin) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var s process.State
	if err := start.DecodeState(&s); err != nil {
		return nil, err
	}
	return process.Recover(ctx, start, s)
}

func (*shellDriverPlugin) Adopt(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	return process.Adopt(ctx, start)
}
