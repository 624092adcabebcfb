package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperserver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/agent/servicelist"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collector"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		helper := func(serve func(context.Context, int) error, version int) {
			if err := serve(context.Background(), version); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
		switch os.Args[1] {
		case keeperwire.CommandName:
			helper(keeperserver.Serve, keeperwire.ProtocolVersion)
		case collectorwire.CommandName:
			helper(collector.Serve, collectorwire.ProtocolVersion)
		}
	}
	os.Exit(m.Run())
}

// recordingExtension records its calls.
type recordingExtension struct{ calls []string }

func (*recordingExtension) Name() string { return "recording" }

func (e *recordingExtension) Open(in ExtensionInput) error {
	e.calls = append(e.calls, fmt.Sprintf("open, has facts: %t", in.DataDir != "" && in.NodeID != "" && in.Settings.Name != "" && in.Host.Hostname != ""))
	return nil
}

func (e *recordingExtension) Run(ctx context.Context, a *Agent) {
	<-ctx.Done()
	e.calls = append(e.calls, fmt.Sprintf("run, has allocations: %t", a.Allocs() != nil))
}

func (e *recordingExtension) Close() error {
	e.calls = append(e.calls, "close")
	return nil
}

// newTestConfig returns the configuration of an agent without plugins.
func newTestConfig(t *testing.T) Config {
	t.Helper()
	plugins, err := catalog.New(catalog.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		DataDir: t.TempDir(), Plugins: plugins, Logger: hclog.NewNullLogger(),
		Node: localnode.Settings{CPUMHzOverride: 1000, MemoryMBOverride: 1000, DiskMBOverride: 1000},
	}
}

// runUntilRegistered runs an agent with the given services until its node is registered.
func runUntilRegistered(t *testing.T, c Config, list []service) {
	t.Helper()
	a, err := openWith(t.Context(), c, list)
	if err != nil {
		t.Error(err)
		return
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ran := make(chan struct{})
	go func() { defer close(ran); a.Run(ctx) }()
	select {
	case <-a.Node().Registered():
	case <-time.After(time.Minute):
		t.Error("the node is not registered")
	}
	end()
	<-ran
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// An agent works without each service that has nothing to open.
func TestAgentWithoutOptionalServices(t *testing.T) {
	for kind, isEphemeral := range map[string]bool{"permanent": false, "ephemeral": true} {
		c := newTestConfig(t)
		c.EphemeralState = isEphemeral
		for _, s := range servicesOf(&c) {
			if s.Open != nil {
				continue
			}
			t.Run(kind+" without "+s.Name, func(t *testing.T) {
				runUntilRegistered(t, c, slices.DeleteFunc(servicesOf(&c), func(other service) bool { return other.Name == s.Name }))
			})
		}
	}
}

// If a service cannot be opened, those before it are closed, and the next agent can use the data directory.
func TestAgentThatCannotOpen(t *testing.T) {
	for kind, isEphemeral := range map[string]bool{"permanent": false, "ephemeral": true} {
		c := newTestConfig(t)
		c.EphemeralState = isEphemeral
		openErr := errors.New("no memory")
		for i, s := range servicesOf(&c) {
			list := servicesOf(&c)
			list[i].Open = func(ctx context.Context, a *Agent) error {
				if s.Open != nil {
					if err := s.Open(ctx, a); err != nil {
						return err
					}
				}
				return openErr
			}
			a := &Agent{logger: c.Logger, config: c, services: servicelist.NewList(list, c.Logger)}
			if err := a.services.Open(t.Context(), a); err != openErr {
				t.Errorf("%s agent, failure of %s: %v", kind, s.Name, err)
			}
			k := a.helperProcesses
			if err := a.Close(); err != nil {
				t.Errorf("%s agent, failure of %s: close: %v", kind, s.Name, err)
			}
			if k != nil {
				waitForExit(t, k.keeper.Status().KeeperProcess, s.Name)
			}
		}
		runUntilRegistered(t, c, servicesOf(&c))
	}
}

// The callback for the keeper can fail an Open that has started a keeper.
func TestAgentWhoseKeeperIsRefused(t *testing.T) {
	c := newTestConfig(t)
	refusal := errors.New("the port is in use")
	var k osprocess.ID
	c.OnKeeperRunning = func(_ context.Context, client *keeper.Client) error {
		k = client.Status().KeeperProcess
		return refusal
	}
	if _, err := Open(t.Context(), c); !errors.Is(err, refusal) {
		t.Errorf("open: %v", err)
	}
	waitForExit(t, k, "helper processes")
}

func waitForExit(t *testing.T, keeper osprocess.ID, failingAfter string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := keeper.WaitEnd(ctx); err != nil {
		t.Fatalf("failure after %s: the keeper lives on: %v", failingAfter, err)
	}
}

func TestExtension(t *testing.T) {
	e := new(recordingExtension)
	c := newTestConfig(t)
	c.Extensions = []Extension{e}
	runUntilRegistered(t, c, servicesOf(&c))
	if want := []string{"open, has facts: true", "run, has allocations: true", "close"}; !slices.Equal(e.calls, want) {
		t.Errorf("got %q, want %q", e.calls, want)
	}
}
