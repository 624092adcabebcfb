package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// serveRareCapabilityDriver serves a driver that uses capabilities which most drivers do not have: `pod-driver NAME DIR
// CAPABILITY…`. The capabilities are network, users, and cpumax, with which the driver limits the CPU of tasks in the
// cgroup that the host has created. A task is a shell script that gets the facts about its start in the variable FACTS.
// DIR has a file for each network; while DIR/broken exists, no network can be destroyed.
func serveRareCapabilityDriver() {
	d := &rareCapabilityDriver{name: os.Args[1], networkDir: networkFileDir(os.Args[2])}
	has := func(capability string) bool { return slices.Contains(os.Args[3:], capability) }
	d.capabilities.DynamicWorkloadUsers, d.limitsCPU = has("users"), has("cpumax")
	if has("network") {
		d.capabilities.MustCreateNetwork = true
		d.capabilities.NetworkIsolationModes = []driver.NetworkMode{driver.NetworkHost, driver.NetworkGroup}
	}
	sdk.ServeDriver(d)
}

type rareCapabilityDriver struct {
	name         string
	capabilities driver.Capabilities
	networkDir   networkFileDir
	limitsCPU    bool
}

func (d *rareCapabilityDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name: d.name, Version: "0.1.0",
		TaskSchema:   hclspec.Object(map[string]*hclspec.Spec{"script": hclspec.Attr("script", "string", true)}),
		Capabilities: d.capabilities,
	}
}

func (d *rareCapabilityDriver) Start(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	var config struct {
		Script string `codec:"script"`
	}
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	if d.limitsCPU {
		if err := os.WriteFile(filepath.Join(start.Resources.Linux.CpusetCgroup, "cpu.max"), []byte("50000 100000"), 0); err != nil {
			return nil, err
		}
	}
	facts := []string{"user=" + start.User}
	if n := start.NetworkIsolation; n != nil {
		facts = append(facts, fmt.Sprintf("network=%v,%s", n.Mode, filepath.Base(n.Path)))
		if n.Hosts != nil {
			facts = append(facts, "hosts="+n.Hosts.Hostname)
		}
	}
	if dns := start.DNS; dns != nil {
		facts = append(facts, fmt.Sprintf("dns=%v,%v,%v", dns.Servers, dns.Searches, dns.Options))
	}
	if start.Resources != nil {
		facts = append(facts, "cpus="+start.Resources.Linux.CpusetCpus, "cgroup="+start.Resources.Linux.CpusetCgroup)
	}
	request := *start
	request.NetworkIsolation = nil // its path is a regular file, which process.Start cannot enter as a namespace
	request.Env = map[string]string{"FACTS": strings.Join(facts, " ")}
	for name, value := range start.Env {
		request.Env[name] = value
	}
	return process.Start(ctx, &request, process.Command{Path: "/bin/sh", Args: []string{"-c", config.Script}})
}

func (*rareCapabilityDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*process.Process, error) {
	return new(shellDriverPlugin).Recover(ctx, start)
}

func (d *rareCapabilityDriver) CreateNetwork(_ context.Context, req sdk.CreateNetworkRequest) (sdk.CreateNetworkResponse, error) {
	return d.networkDir.createNetworkFile(req)
}

func (d *rareCapabilityDriver) DestroyNetwork(_ context.Context, req sdk.DestroyNetworkRequest) error {
	return d.networkDir.removeNetworkFile(req)
}

// networkFileDir is a directory with a file for each network that a driver has created.
type networkFileDir string

func (n networkFileDir) createNetworkFile(req sdk.CreateNetworkRequest) (sdk.CreateNetworkResponse, error) {
	path := filepath.Join(string(n), req.AllocID)
	_, err := os.Stat(path)
	created := errors.Is(err, os.ErrNotExist)
	if err := os.WriteFile(path, []byte(req.Hostname), 0o644); err != nil {
		return sdk.CreateNetworkResponse{}, err
	}
	return sdk.CreateNetworkResponse{Created: created, Isolation: &driver.NetworkIsolation{
		Mode: driver.NetworkGroup, Path: path, Labels: map[string]string{"docker_sandbox_hostname": req.Hostname},
	}}, nil
}

func (n networkFileDir) removeNetworkFile(req sdk.DestroyNetworkRequest) error {
	path := filepath.Join(string(n), req.AllocID)
	if req.Isolation.Path != path {
		return fmt.Errorf("the network of %s is %s, not %s", req.AllocID, path, req.Isolation.Path)
	}
	if _, err := os.Stat(filepath.Join(string(n), "broken")); err == nil {
		return errors.New("device or resource busy")
	}
	return os.RemoveAll(path)
}
