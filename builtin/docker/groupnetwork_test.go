package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

var testNetwork = &driver.NetworkIsolation{
	Mode: driver.NetworkGroup, Path: "/run/netns/x", Labels: map[string]string{sandboxContainerIDLabel: "pause"},
	Hosts: &driver.HostsConfig{Hostname: "web-0", Address: "172.26.64.5"},
}

// mountedFile returns the content of the file of the host that is mounted at a path.
func mountedFile(t *testing.T, host *container.HostConfig, target string) string {
	t.Helper()
	for _, m := range host.Mounts {
		if m.Target == target {
			text, err := os.ReadFile(m.Source)
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
	}
	return ""
}

// A task of a group with a network joins the group's container, which has the options that
// the engine does not accept for the task.
func TestJoinGroupNetwork(t *testing.T) {
	group := func(s *sdk.StartRequest) {
		s.NetworkIsolation = testNetwork
		s.DNS = &driver.DNSConfig{Servers: []string{"10.0.0.53"}, Searches: []string{"example.org"}, Options: []string{"ndots:2"}}
		s.Resources = &driver.Resources{Ports: []driver.PortMapping{{Label: "http", Value: 20000, To: 80}}}
	}
	config, host, err := build(t, nil, map[string]any{"ports": list("http"), "extra_hosts": list("db:10.0.0.7", "six:fd00::1")}, group)
	if err != nil {
		t.Fatal(err)
	}
	if host.NetworkMode != "container:pause" || len(host.PortBindings) > 0 || len(host.DNS) > 0 || len(host.ExtraHosts) > 0 || config.Hostname != "" {
		t.Errorf("the container has %+v", host)
	}
	if got, want := mountedFile(t, host, "/etc/hosts"), "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n172.26.64.5 web-0\n10.0.0.7 db\nfd00::1 six\n"; got != want {
		t.Errorf("/etc/hosts is %q, want %q", got, want)
	}
	if got, want := mountedFile(t, host, "/etc/resolv.conf"), "nameserver 10.0.0.53\nsearch example.org\noptions ndots:2\n"; got != want {
		t.Errorf("/etc/resolv.conf is %q, want %q", got, want)
	}

	_, host, err = build(t, nil, map[string]any{"dns_servers": list("10.0.0.99")}, group)
	if got := mountedFile(t, host, "/etc/resolv.conf"); err != nil || !strings.HasPrefix(got, "nameserver 10.0.0.99\n") || strings.Contains(got, "example.org") {
		t.Errorf("with dns_servers of the task: %q, %v", got, err)
	}
	_, host, err = build(t, nil, map[string]any{"network_mode": "host"}, group)
	if err != nil || host.NetworkMode != "host" || mountedFile(t, host, "/etc/hosts") != "" || len(host.DNS) != 1 {
		t.Errorf("with network_mode of the task: %+v, %v", host, err)
	}
	own := map[string]any{"mount": list(map[string]any{"type": "bind", "source": "local/hosts", "target": "/etc/hosts"})}
	_, host, err = build(t, nil, own, group)
	if err != nil || mountedFile(t, host, "/etc/resolv.conf") == "" {
		t.Fatalf("with a mount of the task: %+v, %v", host, err)
	}
	for _, m := range host.Mounts {
		if m.Target == "/etc/hosts" && !strings.HasSuffix(m.Source, "/local/hosts") {
			t.Errorf("/etc/hosts of the task is %s", m.Source)
		}
	}
}

// Users whom a job admits to the directory of a task can replace files there.
func TestNetworkFilesAreMountedByTheDriver(t *testing.T) {
	plan, err := buildPlan(t, nil, map[string]any{"extra_hosts": list("db:10.0.0.7")}, func(s *sdk.StartRequest) { s.NetworkIsolation = testNetwork }, nil)
	if err != nil || len(plan.driverMountedSources) != 1 || plan.driverMountedSources[0].relativePath != "private/docker-hosts" {
		t.Fatalf("%+v, %v", plan, err)
	}
	for _, m := range plan.createOptions.HostConfig.Mounts {
		if m.Target == "/etc/hosts" && !strings.HasSuffix(m.Source, "/"+driver.MountsDir+"/0badcafe/0") {
			t.Errorf("/etc/hosts of the task is %s", m.Source)
		}
	}
}

func TestRefusedInGroupNetwork(t *testing.T) {
	for name, task := range map[string]map[string]any{
		"hostname":        {"hostname": "mine"},
		"network_aliases": {"network_aliases": list("mine")},
		"ipv4_address":    {"ipv4_address": "10.0.0.1"},
		"mac_address":     {"mac_address": "02:00:00:00:00:01"},
		"extra_hosts":     {"extra_hosts": list("db:host-gateway")},
		"ports":           {"ports": list("unknown")},
	} {
		_, _, err := build(t, nil, task, func(s *sdk.StartRequest) { s.NetworkIsolation = testNetwork })
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want an error that names it", name, err)
		}
	}
	_, _, err := build(t, nil, nil, func(s *sdk.StartRequest) { s.NetworkIsolation = &driver.NetworkIsolation{Path: "/run/netns/x"} })
	if err == nil || !strings.Contains(err.Error(), "by its path") {
		t.Errorf("a namespace of another owner: %v", err)
	}
}

// infra_image is pulled like the image of a task.
func TestInfraImage(t *testing.T) {
	e := newFakeEngine(t)
	pulled := false
	e.handle("POST /images/create", func(w http.ResponseWriter, r *http.Request) {
		pulled = r.URL.Query().Get("fromImage") == "registry.example/pause"
		reply(http.StatusOK, map[string]any{"status": "done"})(w, r)
	})
	e.handle("GET /images/registry.example/pause:3/json", func(w http.ResponseWriter, r *http.Request) {
		if !pulled {
			missing("image")(w, r)
			return
		}
		reply(http.StatusOK, map[string]any{"Id": testImageID})(w, r)
	})
	d := newTestDriver(t, e.host, map[string]any{"infra_image": "registry.example/pause:3"})
	for range 2 {
		if id, err := d.images.pullOrMakeInfraImage(t.Context(), &d.config); id != testImageID || err != nil {
			t.Errorf("got %q, %v", id, err)
		}
	}
	if n := e.count("POST /images/create"); n != 1 {
		t.Errorf("the image was pulled %d times, want once", n)
	}

	d = newTestDriver(t, e.host, map[string]any{"infra_image": "registry.example/slow:3", "infra_image_pull_timeout": "10ms"})
	e.handle("POST /images/create", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if _, err := d.images.pullOrMakeInfraImage(t.Context(), &d.config); err == nil || !strings.Contains(err.Error(), "infra_image_pull_timeout") || !driver.IsRecoverable(err) {
		t.Errorf("a pull that takes too long: %v", err)
	}
}

// The container of a network is removed with the last dangling container in it, and never
// while the allocation has a task.
func TestDanglingNetworks(t *testing.T) {
	e := newFakeEngine(t)
	created := time.Now().Unix() - 1000
	var summaries []any
	for _, alloc := range []string{"lost", "live", "other"} {
		e.handle("GET /containers/pause-"+alloc+"/json", reply(http.StatusOK, map[string]any{
			"Id": "pause-" + alloc, "Name": "/" + groupNetworkContainerName(alloc), "Config": map[string]any{"Labels": map[string]any{labelAllocID: alloc}},
		}))
		e.handle("DELETE /containers/pause-"+alloc, reply(http.StatusNoContent, nil))
	}
	for i, c := range []struct{ alloc, network string }{{"lost", "pause-lost"}, {"live", "pause-live"}, {"lost", "pause-other"}} {
		id := fmt.Sprint("c", i)
		summaries = append(summaries, map[string]any{
			"Id": id, "Created": created, "HostConfig": map[string]any{"NetworkMode": "container:" + c.network},
			"Labels": map[string]any{labelDirectoryID: "directory", labelAllocID: c.alloc, labelStartID: c.alloc + "/old/1"},
		})
		e.handle("DELETE /containers/"+id, reply(http.StatusNoContent, nil))
	}
	e.handle("GET /containers/json", reply(http.StatusOK, summaries))
	d := newTestDriver(t, e.host, nil)
	d.reaper.registerStartAndBeginReaping(d, "live/web/1")
	if err := d.reaper.removeDanglingContainers(t.Context(), d.engine.client(), "directory", d.config.GC.DanglingContainers, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"c0": 1, "c1": 1, "c2": 1, "pause-lost": 1, "pause-live": 0, "pause-other": 0} {
		if got := e.count("DELETE /containers/" + id); got != want {
			t.Errorf("the container %q was removed %d times, want %d", id, got, want)
		}
	}
}

// testGroupNetwork is a case of TestEngine.
func testGroupNetwork(t *testing.T, e *dockertest.Engine, d *Driver, start func(*testing.T, *Driver, map[string]any, func(*sdk.StartRequest)) *task, wait func(*testing.T, *task) driver.ExitResult) {
	const allocID = "99999999-2222-3333-4444-555555555555"
	ctx := t.Context()
	response, err := d.CreateNetwork(ctx, sdk.CreateNetworkRequest{AllocID: allocID, Hostname: "pod"})
	network := response.Isolation
	if err != nil || !response.Created || network.Mode != driver.NetworkGroup || network.Labels[sandboxHostnameLabel] != "pod" {
		t.Fatalf("CreateNetwork returns %+v, %v", response, err)
	}
	t.Cleanup(func() {
		if err := d.DestroyNetwork(context.Background(), sdk.DestroyNetworkRequest{AllocID: allocID, Isolation: network}); err != nil {
			t.Error(err)
		}
	})
	second, err := d.CreateNetwork(ctx, sdk.CreateNetworkRequest{AllocID: allocID, Hostname: "pod"})
	again := second.Isolation
	if err != nil || second.Created || again.Path != network.Path {
		t.Errorf("a second CreateNetwork returns %+v, %v; want the path %s", second, err, network.Path)
	}
	// The namespace has a loopback interface, for the host to add others.
	fd, err := unix.Open(network.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); kind != unix.CLONE_NEWNET || err != nil {
		t.Errorf("%s is a namespace of the type %#x, %v", network.Path, kind, err)
	}

	join := func(s *sdk.StartRequest) {
		isolation := *network
		isolation.Hosts = &driver.HostsConfig{Hostname: "pod"}
		s.NetworkIsolation, s.DNS = &isolation, &driver.DNSConfig{Servers: []string{"10.0.0.53"}}
	}
	script := func(text string) map[string]any { return map[string]any{"args": list("-c", text)} }
	server := start(t, d, script("exec httpd -f -p 127.0.0.1:8080 -h /www"), join)
	client1 := start(t, d, script("until wget -q -O /local/page http://pod:8080/; do usleep 20000; done; hostname >/local/name; grep nameserver /etc/resolv.conf >/local/dns; ls /sys/class/net >/local/interfaces"),
		func(s *sdk.StartRequest) { join(s); s.User = "0" })
	if exit := wait(t, client1); exit.ExitCode != 0 {
		t.Errorf("the client exits with %+v", exit)
	}
	var got bytes.Buffer
	for _, name := range []string{"page", "name", "dns", "interfaces"} {
		text, err := os.ReadFile(filepath.Join(client1.start.TaskDir(), "local", name))
		if err != nil {
			t.Error(err)
		}
		got.Write(text)
	}
	if want := "hello\npod\nnameserver 10.0.0.53\nlo\n"; got.String() != want {
		t.Errorf("a task sees %q, want %q", got.String(), want)
	}

	// A container that was stopped has lost the namespace that the host has prepared.
	if _, err := e.ContainerKill(ctx, network.Labels[sandboxContainerIDLabel], client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		inspected, err := e.ContainerInspect(ctx, network.Labels[sandboxContainerIDLabel], client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !inspected.Container.State.Running {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	request := *server.start
	request.ID = server.start.AllocID + "/web/00000002"
	if _, err := d.Start(ctx, &request); err == nil || driver.IsRecoverable(err) || !strings.Contains(err.Error(), "the allocation must be replaced") {
		t.Errorf("a start after the end of the network: %v", err)
	}
	response, err = d.CreateNetwork(ctx, sdk.CreateNetworkRequest{AllocID: allocID, Hostname: "pod"})
	network = response.Isolation
	if err != nil || !response.Created || network.Labels[sandboxContainerIDLabel] == again.Labels[sandboxContainerIDLabel] {
		t.Errorf("CreateNetwork after the end of the container returns %+v, %v", response, err)
	}
	for range 2 {
		if err := d.DestroyNetwork(ctx, sdk.DestroyNetworkRequest{AllocID: allocID, Isolation: network}); err != nil {
			t.Error(err)
		}
	}
	if _, err := e.ContainerInspect(ctx, groupNetworkContainerName(allocID), client.ContainerInspectOptions{}); !isContainerGone(err) {
		t.Errorf("the container of the network remains: %v", err)
	}
}

// A user whom the job admits to the directory of the task cannot delay its start with a FIFO, or choose the file that the
// driver changes.
func TestPrivateFileReplacesWhatOthersLeave(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	for _, test := range []struct {
		name  string
		leave func(path string) error
	}{
		{"nothing", func(string) error { return nil }},
		{"FIFO", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"hard link", func(path string) error { return os.Link(victim, path) }},
		{"link", func(path string) error { return os.Symlink("../victim", path) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, "private")), os.Mkdir(filepath.Join(dir, "private"), 0o700), os.WriteFile(victim, []byte("of the task"), 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := test.leave(filepath.Join(dir, "private/docker-hosts")); err != nil {
				t.Fatal(err)
			}
			name, err := replacePrivateFile(dir, "docker-hosts", "127.0.0.1 localhost")
			if err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != "127.0.0.1 localhost" {
				t.Errorf("%s contains %q, %v", name, text, err)
			}
			if text, err := os.ReadFile(victim); err != nil || string(text) != "of the task" {
				t.Errorf("the other file contains %q, %v", text, err)
			}
		})
	}
}
