package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
)

// Names of peers whose figures are compared with each other.
const (
	liteDocker        = "nomad-lite, docker"
	liteDockerBridge  = "nomad-lite, docker in bridges"
	engineAlone       = "API of the Docker engine"
	engineAloneBridge = "API of the Docker engine, bridge"
)

// peerProgram is the file name of the program that all peers run.
const peerProgram = "bench-peer-task"

// peerProgramSource is a program that writes the time of its first instruction to a file, and exits after a signal.
const peerProgramSource = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	now := time.Now().UnixNano()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	if err := os.WriteFile(os.Args[1], fmt.Appendln(nil, now), 0o644); err != nil {
		panic(err)
	}
	<-stop
}
`

// peerRoot is the root file system in which the peers run the program, as a directory and as an image.
type peerRoot struct {
	dir    string
	image  string // archive
	stamps string // directory into which tasks write, for peers that have no directory per task

	engine        *dockertest.Engine
	engineMissing error // why engine is nil
}

const (
	peerImage    = "nomad-lite-bench-peers:1"
	stampsTarget = "/stamps" // path of peerRoot.stamps in a container
)

func newPeerRoot(b *testing.B) *peerRoot {
	b.Helper()
	base := b.TempDir()
	r := &peerRoot{dir: filepath.Join(base, "root"), image: filepath.Join(base, "root.tar"), stamps: filepath.Join(base, "stamps")}
	source := filepath.Join(base, peerProgram+".go")
	for _, dir := range []string{filepath.Join(r.dir, "bin"), filepath.Join(r.dir, "proc"), filepath.Join(r.dir, "dev"), filepath.Join(r.dir, "sys"), filepath.Join(r.dir, stampsTarget), r.stamps} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	for dir := r.dir; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // tasks of another user execute the program
			b.Fatal(err)
		}
	}
	if err := os.WriteFile(source, []byte(peerProgramSource), 0o600); err != nil {
		b.Fatal(err)
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", r.program(), source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	runCommand(b, build)
	runCommand(b, exec.Command("tar", "-C", r.dir, "-cf", r.image, "."))
	for _, program := range []string{"dockerd", "docker", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			r.engineMissing = err
			return r
		}
	}
	r.engine = dockertest.StartOrSkip(b)
	runCommand(b, r.docker("import", r.image, peerImage))
	return r
}

// program returns the path of the program on the machine.
func (r *peerRoot) program() string { return filepath.Join(r.dir, "bin", peerProgram) }

func (r *peerRoot) engineDir() string {
	return filepath.Dir(strings.TrimPrefix(r.engine.Host, "unix://"))
}

func runCommand(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	if err := commandError(cmd); err != nil {
		b.Fatal(err)
	}
}

// commandError runs a command. An error contains its output.
func commandError(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// stampedTasks are the tasks of a peer that writes into peerRoot.stamps.
type stampedTasks struct {
	root  *peerRoot
	peer  string
	names []string // of the tasks that run
	total int      // of the tasks that were started
}

// next names the next tasks.
func (s *stampedTasks) next(count int) {
	s.names = nil
	for range count {
		s.total++
		s.names = append(s.names, fmt.Sprintf("%s-%d", strings.Fields(s.peer)[0], s.total))
	}
}

func (s *stampedTasks) files(*testing.B) (files []string) {
	for _, name := range s.names {
		files = append(files, filepath.Join(s.root.stamps, name))
	}
	return files
}

// forkPeer returns the floor: the program as a child of this process.
func (r *peerRoot) forkPeer() *peer {
	tasks, running := &stampedTasks{root: r, peer: "fork"}, []*exec.Cmd{}
	return &peer{
		name: "fork and exec (floor)", stampFiles: tasks.files,
		start: func(b *testing.B, count int) {
			tasks.next(count)
			for _, file := range tasks.files(b) {
				cmd := exec.Command(r.program(), file)
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				running = append(running, cmd)
			}
		},
		stop: func(b *testing.B) {
			for _, cmd := range running {
				_ = cmd.Process.Signal(syscall.SIGTERM) // Wait reports a process that has exited
			}
			for _, cmd := range running {
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
			running = nil
		},
	}
}

// commandPeer returns a peer whose commands start and stop containers in the background.
func (r *peerRoot) commandPeer(name string, dirs []string, command func(args ...string) *exec.Cmd) *peer {
	tasks := &stampedTasks{root: r, peer: name}
	return &peer{
		name: name, dirs: dirs, stampFiles: tasks.files,
		start: func(b *testing.B, count int) {
			tasks.next(count)
			forEachConcurrently(b, count, func(i int) error {
				task := tasks.names[i]
				return commandError(command("run", "--detach", "--name", task, "--network", "host", "--volume", r.stamps+":"+stampsTarget, peerImage, "/bin/"+peerProgram, stampsTarget+"/"+task))
			})
		},
		stop:   func(b *testing.B) { runCommand(b, command(append([]string{"stop"}, tasks.names...)...)) },
		remove: func(b *testing.B) { runCommand(b, command(append([]string{"rm"}, tasks.names...)...)) },
	}
}

// docker returns a command of the client of the engine.
func (r *peerRoot) docker(args ...string) *exec.Cmd {
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+r.engine.Host)
	return cmd
}

func (r *peerRoot) dockerRunPeer() *peer {
	return r.commandPeer("docker run", []string{r.engineDir()}, r.docker)
}

func (r *peerRoot) podmanPeer(b *testing.B, name string) *peer {
	b.Helper()
	dir, err := os.MkdirTemp("/tmp", "nomad-lite-podman") // the length of a socket's path is limited
	if err != nil {
		b.Fatal(err)
	}
	podman := func(args ...string) *exec.Cmd {
		return exec.Command("podman", append([]string{
			"--root", filepath.Join(dir, "data"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
			"--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", "runc", "--network-backend", "cni",
		}, args...)...)
	}
	dockertest.UsePodmanConfig(b, filepath.Join(dir, "containers.conf"))
	b.Cleanup(func() {
		if err := commandError(podman("rm", "--force", "--all", "--time", "0")); err != nil {
			b.Error(err)
		}
		_ = syscall.Unmount(filepath.Join(dir, "data/overlay"), syscall.MNT_DETACH) // not every version mounts it
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	runCommand(b, podman("import", r.image, peerImage))
	return r.commandPeer(name, []string{dir}, podman)
}

// enginePeer returns the calls of the engine's API that any client must make.
func (r *peerRoot) enginePeer(name, network string) *peer {
	tasks := &stampedTasks{root: r, peer: "engine-" + network}
	each := func(call func(ctx context.Context, task string) error) func(*testing.B) {
		return func(b *testing.B) {
			b.Helper()
			forEachConcurrently(b, len(tasks.names), func(i int) error { return call(b.Context(), tasks.names[i]) })
		}
	}
	return &peer{
		name: name, dirs: []string{r.engineDir()}, stampFiles: tasks.files,
		start: func(b *testing.B, count int) {
			tasks.next(count)
			each(func(ctx context.Context, task string) error {
				_, err := r.engine.ContainerCreate(ctx, client.ContainerCreateOptions{
					Name:       task,
					Config:     &container.Config{Image: peerImage, Cmd: []string{"/bin/" + peerProgram, stampsTarget + "/" + task}},
					HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(network), Binds: []string{r.stamps + ":" + stampsTarget}},
				})
				if err == nil {
					_, err = r.engine.ContainerStart(ctx, task, client.ContainerStartOptions{})
				}
				return err
			})(b)
		},
		stop: each(func(ctx context.Context, task string) error {
			_, err := r.engine.ContainerStop(ctx, task, client.ContainerStopOptions{})
			return err
		}),
		remove: each(func(ctx context.Context, task string) error {
			_, err := r.engine.ContainerRemove(ctx, task, client.ContainerRemoveOptions{})
			return err
		}),
	}
}

// runcPeer returns runc, which leaves no process of its own beside a container.
func (r *peerRoot) runcPeer(b *testing.B, name string) *peer {
	b.Helper()
	dir := b.TempDir()
	runCommand(b, exec.Command("runc", "spec", "--bundle", dir))
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		b.Fatal(err)
	}
	runc := func(args ...string) *exec.Cmd {
		return exec.Command("runc", append([]string{"--root", filepath.Join(dir, "state")}, args...)...)
	}
	tasks, mu, running := &stampedTasks{root: r, peer: name}, sync.Mutex{}, []osprocess.ID{}
	startTask := func(task string) error {
		bundle := filepath.Join(dir, task)
		if err := writeRuncBundle(bundle, text, r, []string{"/bin/" + peerProgram, stampsTarget + "/" + task}); err != nil {
			return err
		}
		cmd := runc("run", "--detach", "--bundle", bundle, "--pid-file", filepath.Join(bundle, "pid"), task)
		if err := cmd.Run(); err != nil { // not commandError: the container keeps the output of the command open
			return fmt.Errorf("%v: %w", cmd.Args, err)
		}
		pid, err := os.ReadFile(filepath.Join(bundle, "pid"))
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(pid))
		if err != nil {
			return err
		}
		id, err := osprocess.LookupID(n)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		running = append(running, id)
		return nil
	}
	b.Cleanup(func() {
		for _, task := range tasks.names {
			_ = runc("delete", "--force", task).Run() // a container that was removed does not exist
		}
	})
	return &peer{
		name: name, dirs: []string{dir}, stampFiles: tasks.files,
		start: func(b *testing.B, count int) {
			tasks.next(count)
			forEachConcurrently(b, count, func(i int) error { return startTask(tasks.names[i]) })
		},
		stop: func(b *testing.B) {
			forEachConcurrently(b, len(tasks.names), func(i int) error { return commandError(runc("kill", tasks.names[i], "TERM")) })
			for _, id := range running {
				if err := id.WaitEnd(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			running = nil
		},
		remove: func(b *testing.B) {
			forEachConcurrently(b, len(tasks.names), func(i int) error { return commandError(runc("delete", tasks.names[i])) })
		},
	}
}

// writeRuncBundle writes the directory of a container. spec is the output of runc spec.
func writeRuncBundle(dir string, spec []byte, root *peerRoot, args []string) error {
	var config map[string]any
	if err := json.Unmarshal(spec, &config); err != nil {
		return err
	}
	process := config["process"].(map[string]any)
	process["terminal"], process["args"] = false, args
	config["root"] = map[string]any{"path": root.dir, "readonly": true}
	config["mounts"] = append(config["mounts"].([]any), map[string]any{"type": "bind", "source": root.stamps, "destination": stampsTarget, "options": []string{"bind", "rw"}})
	linux := config["linux"].(map[string]any)
	linux["namespaces"] = slices.DeleteFunc(linux["namespaces"].([]any), func(n any) bool { return n.(map[string]any)["type"] == "network" })
	text, err := json.Marshal(config)
	return errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
}

// jobPeer returns a driver of an agent, nomad-lite or Nomad.
func (r *peerRoot) jobPeer(name, driver, networkMode, dataDir string, agent *api.Client, dirs ...string) *peer {
	var count, total int
	var id string
	return &peer{
		name: name, dirs: dirs,
		start: func(b *testing.B, n int) {
			total++
			count, id = n, fmt.Sprintf("peers-%s-%d", strings.ReplaceAll(driver+networkMode, "_", "-"), total)
			if _, _, err := agent.Jobs().Register(r.job(id, driver, networkMode, n), nil); err != nil {
				b.Fatal(err)
			}
		},
		stampFiles: func(b *testing.B) (files []string) {
			systemtest.WaitJobStatus(b, agent, id, count, api.AllocClientStatusRunning)
			allocs, _, err := agent.Jobs().Allocations(id, false, nil)
			if err != nil {
				b.Fatal(err)
			}
			for _, alloc := range allocs {
				files = append(files, filepath.Join(dataDir, "alloc", alloc.ID, "alloc/data/stamp"))
			}
			return files
		},
		stop: func(b *testing.B) {
			if _, _, err := agent.Jobs().Deregister(id, false, nil); err != nil {
				b.Fatal(err)
			}
			systemtest.WaitJobStatus(b, agent, id, count, api.AllocClientStatusComplete)
		},
	}
}

// job returns a job with count groups, whose task runs the program.
func (r *peerRoot) job(id, driver, networkMode string, count int) *api.Job {
	program := "/bin/" + peerProgram
	if driver == "raw_exec" {
		program = r.program()
	}
	task := api.NewTask("t", driver).SetConfig("command", program).SetConfig("args", []string{"${NOMAD_ALLOC_DIR}/data/stamp"})
	if driver == "docker" {
		task.SetConfig("image", peerImage)
	}
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(30)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	group := api.NewTaskGroup("g", count).AddTask(task)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	if networkMode != "" {
		group.Networks = []*api.NetworkResource{{Mode: networkMode}}
	} else if driver == "docker" {
		task.SetConfig("network_mode", "host")
	}
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50).AddTaskGroup(group)
	job.Datacenters = []string{"*"}
	return job
}

// agentBlocks returns blocks of the configuration of an agent, nomad-lite or Nomad. The options are lines of the block client.
func (r *peerRoot) agentBlocks(options string) string {
	blocks := fmt.Sprintf("client {\n  chroot_env {\n    %q = \"/bin\"\n  }\n%s}\n", filepath.Join(r.dir, "bin"), options)
	if r.engine != nil {
		blocks += fmt.Sprintf("plugin \"docker\" {\n  config {\n    endpoint = %q\n    gc {\n      image = false\n    }\n  }\n}\n", r.engine.Host)
	}
	return blocks
}

// addJobPeers adds the drivers of an agent, whose processes have dir in their arguments or their environment.
func (c *peerComparison) addJobPeers(r *peerRoot, agent, dir, dataDir string, client *api.Client) {
	for _, driver := range []string{"raw_exec", "exec"} {
		c.add(r.jobPeer(agent+", "+driver, driver, "", dataDir, client, dir))
	}
	if r.engine != nil {
		c.add(r.jobPeer(agent+", docker", "docker", "", dataDir, client, dir, r.engineDir()))
	}
}

func (c *peerComparison) addLite(r *peerRoot) {
	a := startBenchAgent(c.B, c.TempDir(), "plugin \"exec\" {}\n", r.agentBlocks("  bridge_network_name   = \"benchpeers\"\n  bridge_network_subnet = \"172.31.192.0/20\"\n"))
	c.Cleanup(func() { a.end(c.B, syscall.SIGINT) })
	a.healthyDriverProcess(c.B, "exec", 0)
	if r.engine != nil {
		a.healthyDriverProcess(c.B, "docker", 0)
	}
	c.addJobPeers(r, "nomad-lite", a.dir, a.dir, a.client)
	c.add(r.jobPeer("nomad-lite, exec in bridges", "exec", "bridge", a.dir, a.client, a.dir))
	if r.engine != nil {
		c.add(r.jobPeer(liteDockerBridge, "docker", "bridge", a.dir, a.client, a.dir, r.engineDir()))
	}
}

func (c *peerComparison) addNomad(r *peerRoot) {
	const program = "nomad"
	switch {
	case *quick:
		c.leftOut["Nomad"] = errors.New("its start takes longer than a quick run")
		return
	case !peers.HasProgram(program):
		c.leftOut["Nomad"] = errors.New("the machine does not have it")
		return
	}
	dir, ports := c.TempDir(), peers.FindFreePorts(c, 3)
	dataDir, configFile := filepath.Join(dir, "data"), filepath.Join(dir, "agent.hcl")
	client, err := api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])})
	if err != nil {
		c.Fatal(err)
	}
	blocks := "server {\n  enabled          = true\n  bootstrap_expect = 1\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n" +
		r.agentBlocks("  enabled = true\n  options = {\n    \"fingerprint.denylist\" = \"env_aws,env_gce,env_azure,env_digitalocean\"\n  }\n")
	if err := os.WriteFile(configFile, []byte(systemtest.FormatStockAgentConfig("peer", dataDir, ports, "127.0.0.1", blocks)), 0o600); err != nil {
		c.Fatal(err)
	}
	var log bytes.Buffer
	cmd := systemtest.NewStockAgentCommand(peers.ProgramOrSkip(c, program), configFile)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		client.Close()
		_ = cmd.Process.Signal(syscall.SIGINT) // Wait reports a process that has exited
		_ = cmd.Wait()                         // an interrupted agent exits with an error
		if c.Failed() {
			c.Logf("log of Nomad:\n%s", log.Bytes()[max(0, log.Len()-4000):])
		}
		_ = allocdir.UnmountAndRemoveOwnDir(dataDir) // Nomad keeps the mounts of stopped allocations
	})
	drivers := []string{"raw_exec", "exec"}
	if r.engine != nil {
		drivers = append(drivers, "docker")
	}
	waitHealthyDrivers(c.B, client, drivers)
	c.addJobPeers(r, "Nomad", dir, dataDir, client)
}

// waitHealthyDrivers waits until the only node of an agent is ready and has healthy drivers.
func waitHealthyDrivers(b *testing.B, agent *api.Client, drivers []string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		nodes, _, err := agent.Nodes().List(nil)
		if err == nil && len(nodes) == 1 && nodes[0].Status == api.NodeStatusReady &&
			!slices.ContainsFunc(drivers, func(d string) bool { return nodes[0].Drivers[d] == nil || !nodes[0].Drivers[d].Healthy }) {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("drivers are not healthy: %v, %v", nodes, err)
		}
	}
}
