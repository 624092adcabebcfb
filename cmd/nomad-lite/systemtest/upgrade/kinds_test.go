package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
)

// taskKind is a kind of tasks. Each allocation of a kind has one task with the name of the kind.
type taskKind struct {
	name   string
	driver string
	script string                              // heartbeatScript if empty
	edit   func(*node, *api.TaskGroup)         // completes the group, which has the task; nil for no change
	exec   bool                                // the driver executes commands in tasks
	hidden bool                                // the processes of the tasks do not have the environment of the task
	check  func(*node, *api.Allocation) string // returns what is wrong with a running allocation; nil if there is nothing else to check
}

// heartbeatScript writes a record of its starts, and counts to its standard output and to a file. The record does not
// depend on what an agent reports.
const heartbeatScript = `
record=$NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME
echo start >>$record.starts
trap 'exit 0' TERM INT
i=0
while :; do
  i=$((i+1))
  echo $i
  echo $i >>$record.counts
  sleep $PAUSE
done
`

// endingScript ends with exit code 4 as soon as the test makes a file.
const endingScript = `
record=$NOMAD_ALLOC_DIR/data/$NOMAD_TASK_NAME
echo start >>$record.starts
echo 1
while [ ! -e $NOMAD_ALLOC_DIR/data/go ]; do sleep 0.3; done
echo 2
exit 4
`

// heartbeatSource does the same as heartbeatScript in Java.
const heartbeatSource = `
import java.nio.file.*;

class Heartbeat {
	public static void main(String[] args) throws Exception {
		String record = System.getenv("NOMAD_ALLOC_DIR") + "/data/" + System.getenv("NOMAD_TASK_NAME");
		append(record + ".starts", "start\n");
		for (int i = 1; ; i++) {
			System.out.println(i);
			append(record + ".counts", i + "\n");
			Thread.sleep((long) (1000 * Double.parseDouble(System.getenv("PAUSE"))));
		}
	}

	static void append(String path, String text) throws Exception {
		Files.writeString(Path.of(path), text, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
	}
}
`

// thirdPartyScript ends the string that the command of a third-party driver prints, and continues the command. The driver gives
// its tasks the environment of the plugin.
const thirdPartyScript = `"; NOMAD_ALLOC_DIR=${NOMAD_ALLOC_DIR}; NOMAD_TASK_NAME=${NOMAD_TASK_NAME}; PAUSE=1; ` + heartbeatScript + `: "`

var (
	rawExec  = taskKind{name: "rawexec", driver: "raw_exec", exec: true}
	execKind = taskKind{name: "exec", driver: "exec", exec: true}
	docker   = taskKind{name: "docker", driver: "docker", exec: true, edit: func(_ *node, g *api.TaskGroup) {
		g.Tasks[0].SetConfig("image", dockertest.Image)
	}}
	sdkDriver  = taskKind{name: "sdk", driver: "shell", exec: true}
	thirdParty = taskKind{name: "third-party", driver: "hello-world-example", hidden: true, edit: func(_ *node, g *api.TaskGroup) {
		g.Tasks[0].Config = map[string]any{"greeting": thirdPartyScript}
	}}
	bridge = taskKind{name: "bridge", driver: "raw_exec", exec: true, check: checkPort,
		script: `/usr/bin/python3 -m http.server -d $NOMAD_ALLOC_DIR/data $NOMAD_PORT_http >/dev/null 2>&1 &` + heartbeatScript,
		edit: func(_ *node, g *api.TaskGroup) {
			g.Networks = []*api.NetworkResource{{Mode: "bridge", DynamicPorts: []api.Port{{Label: "http", To: 8080}}}}
		}}
	volume = taskKind{name: "volume", driver: "exec", exec: true, check: checkVolume,
		script: `(while :; do echo x >>/volume/$NOMAD_ALLOC_ID; sleep $PAUSE; done) &` + heartbeatScript,
		edit: func(_ *node, g *api.TaskGroup) {
			g.Volumes = map[string]*api.VolumeRequest{"data": {Name: "data", Type: "host", Source: volumeName}}
			g.Tasks[0].VolumeMounts = []*api.VolumeMount{{Volume: new("data"), Destination: new("/volume")}}
		}}
	hook = taskKind{name: "hook", driver: "raw_exec", exec: true, edit: func(n *node, g *api.TaskGroup) {
		g.SetMeta("lite_hook_dying", fmt.Sprintf(`{"ledger": %q, "done": true}`, n.ledger(g)))
	}}
	token = taskKind{name: "token", driver: "raw_exec", exec: true, check: checkToken, edit: func(_ *node, g *api.TaskGroup) {
		g.Tasks[0].Identity = &api.WorkloadIdentity{Env: true, File: true}
		g.Tasks[0].Templates = []*api.Template{{
			DestPath: new("local/value"), ChangeMode: new("noop"),
			EmbeddedTmpl: new(`{{ with nomadVar "` + variablePath + `" }}{{ .value }}{{ end }}`),
		}}
	}}
	ending = taskKind{name: "ending", driver: "raw_exec", script: endingScript}
	// Podman is the engine of the driver docker on a node of its own.
	podman = taskKind{name: "podman", driver: "docker", exec: true, edit: func(_ *node, g *api.TaskGroup) {
		g.Tasks[0].SetConfig("image", dockertest.Image)
	}}
	java = taskKind{name: "java", driver: "java", exec: true, edit: func(_ *node, g *api.TaskGroup) {
		task := g.Tasks[0]
		task.Config = map[string]any{"class": "local/Heartbeat.java", "jvm_options": []string{"-Xmx64m"}} // Java compiles a source file before it runs it
		task.Templates = []*api.Template{{DestPath: new("local/Heartbeat.java"), ChangeMode: new("noop"), EmbeddedTmpl: new(heartbeatSource)}}
		task.Resources.MemoryMB = new(512)
	}}
	device = taskKind{name: "device", driver: "raw_exec", exec: true, check: checkDevice,
		script: `echo $ACME_VISIBLE_WIDGETS >$NOMAD_ALLOC_DIR/data/widgets` + heartbeatScript,
		edit: func(_ *node, g *api.TaskGroup) {
			g.Tasks[0].Resources.Devices = []*api.RequestedDevice{{Name: "acme/widget", Count: new(uint64(1))}}
		}}
	lease = taskKind{name: "lease", driver: "raw_exec", exec: true, check: checkLease}
)

// newGroup returns a group with a task of a kind.
func (k taskKind) newGroup(n *node, name string) *api.TaskGroup {
	script := heartbeatScript
	if k.script != "" {
		script = k.script
	}
	task := api.NewTask(k.name, k.driver).SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(64)}
	task.Env = map[string]string{"NODE": n.dataDir, "PAUSE": n.pause} // FindDataDirProcesses finds the processes of the task by NODE
	group := api.NewTaskGroup(name, 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	group.AddTask(task)
	if k.edit != nil {
		k.edit(n, group)
	}
	return group
}

// register registers a job with an allocation per group. The jobs of ending tasks are batch jobs.
func (n *node) register(k taskKind, count int) {
	n.T.Helper()
	job := api.NewServiceJob(k.name, k.name, api.GlobalRegion, 50)
	if k.script == endingScript {
		job = api.NewBatchJob(k.name, k.name, api.GlobalRegion, 50)
	}
	for i := range count {
		job.AddTaskGroup(k.newGroup(n, fmt.Sprintf("g%d", i)))
	}
	if _, _, err := n.Jobs().Register(job, nil); err != nil {
		n.T.Fatalf("register %s: %v", k.name, err)
	}
}

// ledger is the file in which the hook of a group records its calls.
func (n *node) ledger(g *api.TaskGroup) string { return filepath.Join(n.dir, "ledger."+*g.Name) }

const volumeName = "shared"

// createVolume creates the volume that all tasks of a kind write, and returns its id.
func (n *node) createVolume() string {
	n.T.Helper()
	created, _, err := n.HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: &api.HostVolume{
		Namespace: api.DefaultNamespace, Name: volumeName, PluginID: "mkdir", Parameters: map[string]string{"mode": "1777"},
		RequestedCapabilities: []*api.HostVolumeCapability{{AttachmentMode: api.HostVolumeAttachmentModeFilesystem, AccessMode: api.HostVolumeAccessModeSingleNodeMultiWriter}},
	}}, nil)
	if err != nil {
		n.T.Fatal(err)
	}
	return created.Volume.ID
}

// checkVolume checks that the agent has the volume, and that the task still writes to it.
func checkVolume(n *node, alloc *api.Allocation) string {
	list, _, err := n.HostVolumes().List(&api.HostVolumeListRequest{}, nil)
	if err != nil || len(list) != 1 || list[0].State != api.HostVolumeStateReady {
		return fmt.Sprintf("volumes: %v, %v", list, err)
	}
	path := filepath.Join(n.dataDir, "host_volumes", list[0].ID, alloc.ID)
	return grows(path, fileSize(path))
}

// fileSize returns the size of a file, -1 if it does not exist.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return -1
	}
	return info.Size()
}

// grows waits until a file is larger than a size, and returns what is wrong otherwise.
func grows(path string, from int64) string {
	for limit := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if fileSize(path) > from {
			return ""
		}
	}
	return fmt.Sprintf("%s has %d bytes and does not grow", path, from)
}

// checkPort checks that the forwarded port of a group answers, and that its namespace exists.
func checkPort(n *node, alloc *api.Allocation) string {
	if _, err := os.Lstat(netns.Path(alloc.ID)); err != nil {
		return fmt.Sprint("namespace: ", err)
	}
	ports := alloc.AllocatedResources.Shared.Ports
	if len(ports) != 1 {
		return fmt.Sprintf("ports %v", ports)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/bridge.starts", ports[0].Value))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Sprintf("port %d: %s", ports[0].Value, resp.Status)
			}
			return ""
		}
		if time.Now().After(limit) { // the server of the task starts after the task
			return fmt.Sprint("port: ", err)
		}
	}
}

const variablePath = "nomad/jobs/token"

// setVariable sets the variable that tasks read.
func (n *node) setVariable(value string) {
	n.T.Helper()
	if _, _, err := n.Variables().Update(&api.Variable{Namespace: api.DefaultNamespace, Path: variablePath, Items: api.VariableItems{"value": value}}, nil); err != nil {
		n.T.Fatal(err)
	}
}

// checkToken checks that the token of the task, at the socket of the task, has the rights of the task, and that the
// template has the present value of the variable.
func checkToken(n *node, alloc *api.Allocation) string {
	dir := filepath.Join(n.dataDir, "alloc", alloc.ID, "token")
	variable, _, err := n.Variables().Read(variablePath, nil)
	if err != nil {
		return fmt.Sprint("variable: ", err)
	}
	want := variable.Items["value"]
	secrets, err := os.Open(filepath.Join(dir, "secrets"))
	if err != nil {
		return err.Error()
	}
	defer secrets.Close()
	token, err := os.ReadFile(filepath.Join(dir, "secrets", "nomad_token"))
	if err != nil {
		return err.Error()
	}
	request, err := http.NewRequest(http.MethodGet, "http://task/v1/var/"+variablePath, nil)
	if err != nil {
		return err.Error()
	}
	request.Header.Set("X-Nomad-Token", strings.TrimSpace(string(token)))
	var read api.Variable
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer // the path of the socket can be too long for an address
		return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/api.sock", secrets.Fd()))
	}}
	resp, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Sprint("request of the task: ", err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&read); err != nil || read.Items["value"] != want {
		return fmt.Sprintf("the task reads %s %v, %v; want %q", resp.Status, read.Items, err, want)
	}
	var text []byte
	for limit := time.Now().Add(systemtest.WaitTimeout); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		if text, err = os.ReadFile(filepath.Join(dir, "local", "value")); err == nil && string(text) == want {
			return ""
		}
	}
	return fmt.Sprintf("the template has %q, %v; want %q", text, err, want)
}

// checkDevice checks that the allocation has the device with which its task was started, and no other allocation has it.
func checkDevice(n *node, alloc *api.Allocation) string {
	text, err := os.ReadFile(filepath.Join(n.dataDir, "alloc", alloc.ID, "alloc", "data", "widgets"))
	if err != nil {
		return err.Error()
	}
	allocated := alloc.AllocatedResources.Tasks[alloc.JobID].Devices
	if len(allocated) != 1 || len(allocated[0].DeviceIDs) != 1 || allocated[0].DeviceIDs[0] != strings.TrimSpace(string(text)) {
		return fmt.Sprintf("devices %+v, the task was started with %q", allocated, text)
	}
	if other, used := n.devices[allocated[0].DeviceIDs[0]]; used && other != alloc.ID {
		return fmt.Sprintf("allocation %s has the device, too", other)
	}
	n.devices[allocated[0].DeviceIDs[0]] = alloc.ID
	node, _, err := n.Nodes().Info(alloc.NodeID, nil)
	if err != nil {
		return err.Error()
	}
	for _, group := range node.NodeResources.Devices {
		if group.Name == "widget" && len(group.Instances) == deviceCount {
			return ""
		}
	}
	return fmt.Sprintf("the node has the devices %+v", node.NodeResources.Devices)
}

// deviceCount is the number of devices of the fault "twelve" of test-device.
const deviceCount = 12

// checkLease checks that a lock of the allocation, which the first call acquires, is still held and can be renewed.
func checkLease(n *node, alloc *api.Allocation) string {
	path := "/v1/var/locks/" + alloc.ID
	request := &api.Variable{Namespace: api.DefaultNamespace, Path: "locks/" + alloc.ID, Lock: &api.VariableLock{TTL: "10m", LockDelay: "1s"}}
	var answer api.Variable
	held := n.locks[alloc.ID]
	if held == "" {
		if _, err := n.Raw().Write(path+"?lock-acquire", request, &answer, nil); err != nil {
			return fmt.Sprint("acquire: ", err)
		}
		n.locks[alloc.ID] = answer.LockID()
		return ""
	}
	if _, err := n.Raw().Write(path+"?lock-acquire", request, &answer, nil); err == nil || !strings.Contains(err.Error(), "409") {
		return fmt.Sprintf("another client acquires the lock: %v", err)
	}
	request.Lock.ID = held
	if _, err := n.Raw().Write(path+"?lock-renew", request, &answer, nil); err != nil {
		return fmt.Sprint("renew: ", err)
	}
	return ""
}

// installThirdPartyDriver unpacks a driver that was made with another SDK into the plugin directory. It reports whether there
// is one.
func (n *node) installThirdPartyDriver() bool {
	err := peers.Unpack("hello-driver", filepath.Join(n.dir, "plugins", "hello-driver"))
	if errors.Is(err, os.ErrNotExist) {
		n.T.Logf("without a third-party driver: %v", err)
		return false
	}
	if err != nil {
		n.T.Fatal(err)
	}
	return true
}
