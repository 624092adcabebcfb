package faults

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

// startKind is a driver whose starts are interrupted.
type startKind struct {
	driver   string
	process  string // kind of the process of its plugin, see systemtest.DataDirProcess
	count    int    // tasks per iteration
	unmarked bool   // its starts leave no mark: what becomes of a start is unknown if its plugin does not know it

	// losesExitCodes means that the driver reports the exit code 0 for some of the tasks that have exited with another one.
	losesExitCodes bool

	// install prepares the node. The error is an exec.ErrNotFound or an os.ErrNotExist if the machine does not have a program
	// that the driver needs. nil means that the driver needs nothing.
	install func(*interruptedStartsRun) error
	config  map[string]any       // config block of the tasks
	edit    func(*api.TaskGroup) // completes a group; nil for no change
}

// startScript records the start and the end of a task. Its duration and its exit code differ between the tasks, and with
// the variable SHIFT between the iterations.
const startScript = `
record=$NOMAD_ALLOC_DIR/data/record
echo start >>$record
sleep 0.$(((NOMAD_ALLOC_INDEX + SHIFT) % 5))
echo end >>$record
exit $(((NOMAD_ALLOC_INDEX + SHIFT) % 7))
`

// exitCode is the exit code of the task with an index.
func exitCode(index, shift int) int { return (index + shift) % 7 }

var shellConfig = map[string]any{"command": "/bin/sh", "args": []string{"-c", startScript}}

// sampleStartKinds are drivers that need nothing but the machine.
func sampleStartKinds(count int) []startKind {
	return []startKind{
		{driver: rawexec.Name, process: "plugin", count: count, config: shellConfig},
		{driver: execdriver.Name, process: systemtest.OnDemandPluginKind, count: count, config: shellConfig},
		{driver: "external_exec", process: "exec-driver", count: count, install: installTestDriver("exec-driver", "", "  config {\n    enabled = true\n  }\n"), config: shellConfig},
		wireStartKind(count),
	}
}

// wireStartKind is a driver that is not made with package sdk.
func wireStartKind(count int) startKind {
	return startKind{
		driver: drivertest.Plain.DriverName(), process: "wire-driver", count: count, unmarked: true,
		install: installTestDriver("wire-driver", string(drivertest.Plain), ""), config: map[string]any{"script": startScript},
	}
}

// dockerStartKinds are all drivers, with the engine of Docker. 500 iterations start 100,000 tasks of raw_exec, 10,000 of exec and
// 1,000 of each other driver.
func dockerStartKinds() []startKind {
	return []startKind{
		{driver: rawexec.Name, process: "plugin", count: 200, config: shellConfig},
		{driver: execdriver.Name, process: systemtest.OnDemandPluginKind, count: 20, config: shellConfig},
		{
			driver: java.Name, process: systemtest.OnDemandPluginKind, count: 2, install: installJava,
			config: map[string]any{"class_path": "/classes", "class": "Task", "jvm_options": []string{"-Xmx16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}},
			edit: func(g *api.TaskGroup) {
				g.Volumes = map[string]*api.VolumeRequest{classesVolume: {Name: classesVolume, Type: "host", Source: classesVolume, ReadOnly: true}}
				g.Tasks[0].VolumeMounts = []*api.VolumeMount{{Volume: new(classesVolume), Destination: new("/classes"), ReadOnly: new(true)}}
			},
		},
		containerStartKind(2, "dockerd", dockertest.StartOrSkip),
		{driver: "script", process: "script-driver", count: 2, install: installExampleDriver, config: map[string]any{"script": startScript}},
		wireStartKind(2),
		{
			driver: "hello-world-example", process: "hello-driver", count: 2, unmarked: true,
			install: func(r *interruptedStartsRun) error { return installPeer(r, "hello-driver", "hello-driver", "") },
			// The script ends the string that the command of the driver prints, and continues the command. The driver gives its tasks
			// the environment of the plugin.
			config: map[string]any{"greeting": "\"\nNOMAD_ALLOC_DIR=${NOMAD_ALLOC_DIR} NOMAD_ALLOC_INDEX=${NOMAD_ALLOC_INDEX} SHIFT=${SHIFT}" + startScript + ": \""},
		},
	}
}

// podmanStartKinds are the drivers of containers, with the engine of podman.
func podmanStartKinds() []startKind {
	return []startKind{
		containerStartKind(8, "podman", dockertest.StartPodmanOrSkip),
		{
			driver: "podman", process: "podman-driver", count: 8, unmarked: true, losesExitCodes: true, install: installPodmanPeer, config: containerConfig,
			edit: func(g *api.TaskGroup) { g.Tasks[0].SetConfig("image", "docker.io/library/"+dockertest.Image) },
		},
		{driver: rawexec.Name, process: "plugin", count: 20, config: shellConfig},
	}
}

// newGroup returns a group of tasks that may run once.
func (k startKind) newGroup(shift int) *api.TaskGroup {
	task := api.NewTask("run", k.driver)
	task.Env = map[string]string{"SHIFT": strconv.Itoa(shift)}
	task.Config = maps.Clone(k.config)
	task.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	task.Resources = &api.Resources{CPU: new(2), MemoryMB: new(128)} // runc refuses fewer CPU shares
	group := api.NewTaskGroup(k.driver, k.count).AddTask(task)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	if k.edit != nil {
		k.edit(group)
	}
	return group
}

// installTestDriver puts a driver of package programs into the plugin directory.
func installTestDriver(program, arg, config string) func(*interruptedStartsRun) error {
	return func(r *interruptedStartsRun) error {
		path, err := exec.LookPath(program)
		if err != nil {
			return err
		}
		return errors.Join(r.addConfig(program, "plugin %q {\n%s}\n", program, config),
			os.WriteFile(filepath.Join(r.pluginDir(), program), fmt.Appendf(nil, "#!/bin/sh\nexec %s %s\n", path, arg), 0o755))
	}
}

// installExampleDriver builds a driver of the examples of the SDK.
func installExampleDriver(r *interruptedStartsRun) error {
	const name = "script-driver"
	return errors.Join(r.addConfig(name, "plugin %q {}\n", name),
		runIn(systemtest.RepositoryDir(), "go", "build", "-o", filepath.Join(r.pluginDir(), name), "./sdk/examples/script"))
}

// installPeer puts a driver of others into the plugin directory.
func installPeer(r *interruptedStartsRun, peer, name, config string) error {
	if err := peers.Unpack(peer, filepath.Join(r.pluginDir(), name)); err != nil {
		return err
	}
	return r.addConfig(name, "plugin %q {\n%s}\n", name, config)
}

// classesVolume is the volume with the program of the driver java.
const classesVolume = "classes"

func installJava(r *interruptedStartsRun) error {
	classes := filepath.Join(r.dir, classesVolume)
	if err := runIn("testdata/starts", "javac", "-d", classes, "Task.java"); err != nil {
		return err
	}
	return r.addConfig(java.Name, "client {\n  host_volume %q {\n    path      = %q\n    read_only = true\n  }\n}\nplugin \"java\" {}\n", classesVolume, classes)
}

// runIn runs a command in a directory.
func runIn(dir, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return nil
}

// containerConfig is the config block of tasks whose driver starts containers. The network of the host needs no bridge, which
// podman would leave behind.
var containerConfig = map[string]any{"image": dockertest.Image, "command": "/bin/sh", "args": []string{"-c", startScript}, "network_mode": "host"}

// containerStartKind is the driver docker with an engine, which start starts with a program.
func containerStartKind(count int, program string, start func(testing.TB) *dockertest.Engine) startKind {
	install := func(r *interruptedStartsRun) error {
		for _, needed := range []string{program, "busybox"} {
			if _, err := exec.LookPath(needed); err != nil {
				return err
			}
		}
		r.engine = start(r.T)
		return r.addConfig("docker", "plugin \"docker\" {\n  config {\n    endpoint = %q\n    gc {\n      image = false\n    }\n  }\n}\n", r.engine.Host)
	}
	return startKind{driver: "docker", process: "plugin", count: count, install: install, config: containerConfig}
}

// installPodmanPeer installs the driver podman of others, for the engine of the driver docker.
func installPodmanPeer(r *interruptedStartsRun) error {
	if r.engine == nil {
		return exec.ErrNotFound // the driver docker was left out for lack of a program
	}
	return installPeer(r, podmanPeer, "podman-driver", fmt.Sprintf("  config {\n    socket_path = %q\n  }\n", r.engine.Host))
}
