package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/java"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/plugins/driver/drivertest"
)

// killKind is a kind of the tasks that run while processes are killed. Each kind is a job with one group.
type killKind struct {
	name    string // of the job
	driver  string
	plugin  string // kind of the processes of the driver's plugin, see killNode.processes
	memory  int    // MB
	foreign bool   // the driver is not made with package sdk, and does not know the exit status of a recovered task

	noSignal       bool // the driver reports the exit code of a killed task, 137, without its signal
	losesExitCodes bool // the driver reports the exit code 0 for some of the tasks that have exited with another one

	linePrefix bool // each line of output begins with its time, its stream and a flag

	install func(*killNode)                                  // makes the node able to run tasks of the kind; nil for nothing
	edit    func(*killNode, *api.TaskGroup)                  // completes the group, whose task has the script as its command; nil for no change
	check   func(*killNode, []*api.AllocationListStub) error // returns what is wrong with the allocations, which run; nil for no check
}

// killTask is the name of the task of each kind.
const killTask = "count"

// killScript records the start of each run and each requested exit, and counts on its standard output. A run that sees a later
// run of its allocation records that both have run at once. The commands are in each image and in each shell.
const killScript = `
record=$NOMAD_ALLOC_DIR/data/record
run=1
[ -e $record ] && while read word x; do [ $word = start ] && run=$((run+1)); done <$record
echo $run >$record.run
echo "start $run $$" >>$record
i=0
while :; do
  i=$((i+1))
  echo $run $i
  read last <$record.run
  [ "$last" = $run ] || { echo double >>$record; exit 99; }
  [ -e $record.end ] && { rm $record.end; echo "end $run $i" >>$record; exit 7; }
  sleep $PAUSE
done
`

// killProgramJava is killScript for a Java virtual machine.
const killProgramJava = `
import java.nio.file.*;
import static java.nio.file.StandardOpenOption.*;

public class Count {
	static void append(Path file, String line) throws Exception { Files.writeString(file, line + "\n", CREATE, APPEND); }

	public static void main(String[] args) throws Exception {
		String record = System.getenv("NOMAD_ALLOC_DIR") + "/data/record";
		Path file = Path.of(record), end = Path.of(record + ".end"), newest = Path.of(record + ".run");
		int run = 1;
		if (Files.exists(file)) for (String line : Files.readAllLines(file)) if (line.startsWith("start ")) run++;
		Files.writeString(newest, run + "\n");
		append(file, "start " + run + " " + ProcessHandle.current().pid());
		for (int i = 1; ; i++) {
			System.out.println(run + " " + i);
			if (!Files.readString(newest).equals(run + "\n")) { append(file, "double"); System.exit(99); }
			if (Files.exists(end)) { Files.delete(end); append(file, "end " + run + " " + i); System.exit(7); }
			Thread.sleep((long) (1000 * Double.parseDouble(System.getenv("PAUSE"))));
		}
	}
}
`

const (
	killVolume        = "shared"
	killDeviceType    = "widget"
	killDeviceCount   = 12 // devices of the node
	killService       = "kills"
	killDeviceProcess = "devnodes-device"
)

var (
	killRawExec = killKind{name: "raw-exec", driver: rawexec.Name, plugin: servedPluginKind(rawexec.Name)}
	killExec    = killKind{name: "exec", driver: execdriver.Name, plugin: servedPluginKind(execdriver.Name)}
	killJava    = killKind{name: "java", driver: java.Name, plugin: servedPluginKind(java.Name), memory: 256, install: installJavaClass, edit: func(n *killNode, g *api.TaskGroup) {
		g.Tasks[0].Config = map[string]any{"class": "Count", "class_path": "/local", "jvm_options": []string{"-Xmx32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}}
		g.Tasks[0].Artifacts = []*api.TaskArtifact{{GetterSource: new(n.fileServer + "/files/Count.class")}}
	}}
	killDocker = killKind{name: "docker", driver: "docker", plugin: servedPluginKind("docker"), install: func(n *killNode) {
		n.addPluginConfig("docker", fmt.Sprintf("endpoint = %q\ngc {\n  image = false\n}\n", n.docker.Host))
	}, edit: func(_ *killNode, g *api.TaskGroup) {
		g.Tasks[0].SetConfig("image", dockertest.Image).SetConfig("network_mode", "none")
	}}
	killPodman = killKind{name: "podman", driver: "podman", plugin: "podman-driver", foreign: true, noSignal: true, losesExitCodes: true, linePrefix: true, install: installPodmanDriver, edit: func(_ *killNode, g *api.TaskGroup) {
		g.Tasks[0].SetConfig("image", dockertest.Image).SetConfig("force_pull", false).SetConfig("network_mode", "none")
	}}
	killSDK = killKind{name: "sdk", driver: "shell", plugin: "shell-driver", install: func(n *killNode) {
		n.installPlugin("shell-driver", "", "shell-driver")
	}}
	killExternal = killKind{name: "external", driver: "external_exec", plugin: "exec-driver", install: func(n *killNode) {
		n.installPlugin("exec-driver", "enabled = true\n", "exec-driver")
	}}
	killForeign = killKind{name: "foreign", driver: drivertest.Plain.DriverName(), plugin: "wire-driver", foreign: true, install: func(n *killNode) {
		n.installPlugin("wire-driver", "", "wire-driver", string(drivertest.Plain))
	}, edit: func(_ *killNode, g *api.TaskGroup) {
		g.Tasks[0].Config = map[string]any{"script": killScript}
	}}
	killBridge = killKind{name: "bridge", driver: rawexec.Name, plugin: servedPluginKind(rawexec.Name), check: checkKillBridge, edit: func(_ *killNode, g *api.TaskGroup) {
		g.Networks = []*api.NetworkResource{{Mode: "bridge", DynamicPorts: []api.Port{{Label: "http", To: 8080}}}}
		g.Services = []*api.Service{{Name: killService, Provider: "nomad", PortLabel: "http"}}
	}}
	killVolumes = killKind{name: "volume", driver: execdriver.Name, plugin: servedPluginKind(execdriver.Name), check: checkKillVolume, edit: func(_ *killNode, g *api.TaskGroup) {
		g.Volumes = map[string]*api.VolumeRequest{"data": {Name: "data", Type: "host", Source: killVolume}}
		g.Tasks[0].VolumeMounts = []*api.VolumeMount{{Volume: new("data"), Destination: new("/volume")}}
		g.Tasks[0].SetConfig("args", []string{"-c", "echo start >>/volume/$NOMAD_ALLOC_ID\n" + killScript})
	}}
	killHook = killKind{name: "hook", driver: rawexec.Name, plugin: servedPluginKind(rawexec.Name), install: func(n *killNode) {
		n.installPlugin("dying", "", "dying-hook", "dying")
	}, edit: func(n *killNode, g *api.TaskGroup) {
		g.SetMeta("lite_hook_dying", fmt.Sprintf(`{"ledger": %q, "done": true}`, n.killLedger()))
	}}
	killDevices = killKind{name: "device", driver: execdriver.Name, plugin: servedPluginKind(execdriver.Name), install: installKillDevices, check: checkKillDevices, edit: requestKillDevice}
)

// killKindCounts returns the kinds whose tasks the agent can run in its environment on this machine, and the number of tasks
// of each kind: about taskCount tasks in all.
func killKindCounts(n *killNode, taskCount int) (kinds []killKind, counts map[string]int) {
	counts = map[string]int{}
	add := func(possible bool, share int, kind killKind) {
		if possible {
			kinds = append(kinds, kind)
			counts[kind.name] = max(1, share*taskCount/100)
		}
	}
	root := n.in.uid == 0
	_, javacErr := exec.LookPath("javac")
	podmanDriver := n.podman != nil && peers.HasProgram(podmanPeer)
	add(true, 8, killRawExec)
	add(true, 10, killSDK)
	add(true, 8, killExternal)
	add(true, 8, killForeign)
	add(true, 8, killHook)
	add(root, 8, killExec)
	add(root && javacErr == nil && n.docker != nil, 6, killJava)
	add(n.docker != nil, 10, killDocker)
	add(root && podmanDriver, 8, killPodman)
	add(root, 8, killBridge)
	add(root, 8, killVolumes)
	add(true, 8, killDevices.in(n))
	total := 0
	for _, count := range counts {
		total += count
	}
	counts[killRawExec.name] += max(0, taskCount-total)
	return kinds, counts
}

// in returns the kind with a driver that the agent of a node can use: exec needs root.
func (k killKind) in(n *killNode) killKind {
	if n.in.uid != 0 && k.driver == execdriver.Name {
		k.driver, k.plugin = killRawExec.driver, killRawExec.plugin
	}
	return k
}

// newJob returns the job of a kind.
func (k killKind) newJob(n *killNode, count int, pause string) *api.Job {
	task := api.NewTask(killTask, k.driver).SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", killScript})
	task.Resources = &api.Resources{CPU: new(20), MemoryMB: new(max(64, k.memory))}
	task.LogConfig = &api.LogConfig{MaxFiles: new(4), MaxFileSizeMB: new(10)}
	task.KillTimeout = new(time.Second)                               // the first process of a pid namespace ignores the signal
	task.Env = map[string]string{"NODE": n.dataDir(), "PAUSE": pause} // FindDataDirProcesses finds the processes of the task by NODE
	group := api.NewTaskGroup("g", count)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(50)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(1000000), Interval: new(24 * time.Hour), Delay: new(time.Duration(0)), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	group.AddTask(task)
	if k.edit != nil {
		k.edit(n, group)
	}
	return api.NewServiceJob(k.name, k.name, api.GlobalRegion, 50).AddTaskGroup(group)
}

func installJavaClass(n *killNode) {
	source := n.path("Count.java")
	err := os.WriteFile(source, []byte(killProgramJava), 0o644)
	if err == nil {
		var out []byte
		if out, err = exec.Command("javac", "-d", n.path("files"), source).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
	}
	if err != nil {
		n.Fatal(err)
	}
}

// podmanPeer is the driver podman of others.
const podmanPeer = "nomad-driver-podman"

func installPodmanDriver(n *killNode) {
	program := n.path("bin/podman-driver")
	if err := peers.Unpack(podmanPeer, program); err != nil {
		n.Fatal(err)
	}
	n.installPluginFile(podmanPeer, fmt.Sprintf("socket_path = %q\n", n.podman.Host), program)
}

// deviceNode is the device file of all devices, which tasks can have only below /dev. It has the numbers of /dev/null.
func (n *killNode) deviceNode() string { return filepath.Join("/dev", filepath.Base(n.dir)) }

// hiddenDeviceNode is the path of the device file while the devices are unhealthy.
func (n *killNode) hiddenDeviceNode() string { return n.deviceNode() + ".hidden" }

func installKillDevices(n *killNode) {
	program := n.path("bin/" + killDeviceProcess)
	build := exec.Command("go", "build", "-o", program, "./sdk/examples/devnodes")
	build.Dir = systemtest.RepositoryDir()
	if out, err := build.CombinedOutput(); err != nil {
		n.Fatalf("%v\n%s", err, out)
	}
	if err := errors.Join(unix.Mknod(n.deviceNode(), unix.S_IFCHR, int(unix.Mkdev(1, 3))), os.Chmod(n.deviceNode(), 0o666)); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		for _, path := range []string{n.deviceNode(), n.hiddenDeviceNode()} {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				n.Error(err)
			}
		}
	})
	n.installPluginFile("devnodes", fmt.Sprintf("device %q {\n  paths = [%q]\n  count = %d\n}\n", killDeviceType, n.deviceNode(), killDeviceCount), program)
}

func requestKillDevice(n *killNode, g *api.TaskGroup) {
	g.Tasks[0].Resources.Devices = []*api.RequestedDevice{{Name: killDeviceType, Count: new(uint64(1))}}
}

// checkKillDevices checks that each allocation has a device of its own.
func checkKillDevices(n *killNode, allocs []*api.AllocationListStub) error {
	owners := map[string]string{}
	for _, stub := range allocs {
		alloc, _, err := n.client.Allocations().Info(stub.ID, nil)
		if err != nil {
			return err
		}
		ids := allocDevices(alloc)
		if len(ids) != 1 {
			n.Fatalf("%s has the devices %v, want one", alloc.ID, ids)
		}
		if other, taken := owners[ids[0]]; taken {
			n.Fatalf("the allocations %s and %s have the device %s", other, alloc.ID, ids[0])
		}
		owners[ids[0]] = alloc.ID
	}
	return nil
}

func allocDevices(alloc *api.Allocation) (ids []string) {
	for _, task := range alloc.AllocatedResources.Tasks {
		for _, d := range task.Devices {
			ids = append(ids, d.DeviceIDs...)
		}
	}
	return ids
}

// checkKillBridge checks that each allocation has its network namespace, and is registered as an instance of the service once.
func checkKillBridge(n *killNode, allocs []*api.AllocationListStub) error {
	registered, _, err := n.client.Services().Get(killService, nil)
	if err != nil {
		return err
	}
	instances := map[string]int{}
	for _, s := range registered {
		instances[s.AllocID]++
	}
	for _, alloc := range allocs {
		if _, err := os.Lstat(netns.Path(alloc.ID)); err != nil {
			return fmt.Errorf("network namespace: %w", err)
		}
		if instances[alloc.ID] != 1 {
			return fmt.Errorf("%s has %d instances of its service", alloc.ID, instances[alloc.ID])
		}
	}
	if len(instances) != len(allocs) {
		return fmt.Errorf("%d allocations have instances of the service, want %d", len(instances), len(allocs))
	}
	return nil
}

// createKillVolume creates the volume that tasks write.
func createKillVolume(n *killNode) error {
	_, _, err := n.client.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: &api.HostVolume{
		Namespace: api.DefaultNamespace, Name: killVolume, PluginID: "mkdir", Parameters: map[string]string{"mode": "1777"},
		RequestedCapabilities: []*api.HostVolumeCapability{{AttachmentMode: api.HostVolumeAttachmentModeFilesystem, AccessMode: api.HostVolumeAccessModeSingleNodeMultiWriter}},
	}}, nil)
	return err
}

// checkKillVolume checks that each run of the tasks has written to the volume.
func checkKillVolume(n *killNode, allocs []*api.AllocationListStub) error {
	list, _, err := n.client.HostVolumes().List(&api.HostVolumeListRequest{}, nil)
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].State != api.HostVolumeStateReady {
		return fmt.Errorf("volumes %v", list)
	}
	for _, alloc := range allocs {
		record, err := os.ReadFile(n.allocPath(alloc.ID, "data/record"))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(n.dataDir(), "host_volumes", list[0].ID, alloc.ID)) // a run writes it before its record
		if err != nil {
			return err
		}
		if written, runs := strings.Count(string(text), "start\n"), strings.Count(string(record), "start "); written < runs {
			n.Fatalf("%s: %d of %d runs have written to the volume", alloc.ID, written, runs)
		}
	}
	return nil
}

// killLedger is the file in which the hook records its calls.
func (n *killNode) killLedger() string { return n.path("ledgers/hook") }

// checkKillLedger checks that the hook was called at the cleanup points of each allocation, with the state that it has
// returned earlier.
func checkKillLedger(n *killNode, allocs int) {
	n.Helper()
	ledger, err := os.ReadFile(n.killLedger())
	if err != nil {
		n.Error(err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(ledger)) {
		count[strings.TrimSuffix(line, "\n")]++
	}
	for _, call := range []string{"prestart x", "stop x", "postrun", "destroy"} {
		if count[call] < allocs {
			n.Errorf("the hook was told %q %d times, of %d allocations: %v", call, count[call], allocs, count)
		}
	}
}
