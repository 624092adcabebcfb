package hostile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
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
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/hostile/attack"
	"github.com/nomad-lite/nomad-lite/internal/netns"
)

const (
	probeInImage  = "/probe"
	chrootDir     = "/hostile" // in tasks of exec
	probeInChroot = chrootDir + probeInImage
	rootOnly      = chrootDir + "/root-only"
	bridgeName    = "nlhostile"
	secretOfRoot  = "a file of root"
	victimUser    = "4009" // no other task has this user
)

// hostVolumes are the host volumes of the world.
var hostVolumes = []string{"outer", "shared", closedVolume}

// closedVolume is the host volume that no mount of a task may be the peer of.
const closedVolume = "closed"

// hostileWorld is what the probes attack: canaries on the machine, and the record of what has happened to them.
type hostileWorld struct {
	canaryDir, canary, chroot, volumes string
	downloads                          string // URL of a server
	engineSocket                       string // path
	logs                               hostileLogTargets
	secrets                            map[string]string // description of each secret text
	targets                            attack.Targets
	namespaces                         map[string]uint64 // of the machine
	peerGroup                          string            // of the mount that the volumes are in
	hasBridge                          bool              // groups can have the network mode "bridge"

	mu       sync.Mutex
	breaches []string // seen from outside
	probes   map[string]int
}

func newHostileWorld(t *testing.T) *hostileWorld {
	t.Helper()
	dir := newPublicDir(t)
	w := &hostileWorld{
		canaryDir: filepath.Join(dir, "canary"), chroot: filepath.Join(dir, "chroot"), volumes: filepath.Join(dir, "volumes"),
		secrets: map[string]string{}, namespaces: map[string]uint64{}, probes: map[string]int{},
	}
	w.canary = filepath.Join(w.canaryDir, "file")
	w.targets.UnchangeableFile = filepath.Join(w.canaryDir, "guard")
	w.makeDir(t, w.canaryDir, 0o755)
	w.makeDir(t, w.chroot, 0o755)
	for _, name := range []string{"", "outer", "shared", closedVolume} {
		w.makeDir(t, filepath.Join(w.volumes, name), 0o777)
	}
	w.makeDir(t, w.volumes, 0o755)
	w.shareVolumes(t)
	w.makeFile(t, w.canary, w.newSecret("a file of the machine"), 0o644)
	w.makeFile(t, w.targets.UnchangeableFile, "", 0o666)
	w.makeFile(t, filepath.Join(w.chroot, "root-only"), w.newSecret(secretOfRoot), 0o600)
	w.makeFile(t, filepath.Join(w.chroot, probeInImage), string(buildProbe(t)), 0o755)
	w.targets.UnreachableCommandTexts = []string{"nomad-lite ", "probe wait"}
	w.targets.UnreadableFiles = []string{w.canary, rootOnly}
	for _, name := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		var st unix.Stat_t
		if err := unix.Stat("/proc/self/ns/"+name, &st); err != nil {
			t.Fatal(err)
		}
		w.namespaces[name] = st.Ino
	}
	w.listen(t)
	w.watchLogTargets(t)
	server := httptest.NewServer(http.HandlerFunc(func(r http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/redirect":
			http.Redirect(r, q, "file://"+w.canary, http.StatusFound)
		case "/endless-redirect":
			http.Redirect(r, q, q.URL.Path, http.StatusFound)
		default:
			fmt.Fprint(r, "#!/bin/sh\n")
		}
	}))
	t.Cleanup(server.Close)
	w.downloads = server.URL
	return w
}

// buildProbe returns a static program.
func buildProbe(t *testing.T) []byte {
	t.Helper()
	program, err := os.ReadFile(systemtest.BuildHostileProbe(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func (w *hostileWorld) makeDir(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func (w *hostileWorld) makeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// newSecret returns a text that no task may obtain.
func (w *hostileWorld) newSecret(of string) string {
	text := fmt.Sprintf("secret-%x", rand.Uint64())
	w.secrets[text] = of
	return text
}

// findSecret returns the description of a secret in a text, "" if there is none.
func (w *hostileWorld) findSecret(text string) string {
	for secret, of := range w.secrets {
		if strings.Contains(text, secret) {
			return of
		}
	}
	return ""
}

// listen accepts connections at the sockets that tasks must not reach.
func (w *hostileWorld) listen(t *testing.T) {
	t.Helper()
	path := filepath.Join(w.canaryDir, "socket")
	abstract := "@nomad-lite-" + filepath.Base(filepath.Dir(w.canaryDir)) + fmt.Sprint(os.Getpid())
	for _, at := range [][2]string{{"unix", path}, {"unix", abstract}, {"tcp4", "127.0.0.1:0"}} {
		listener, err := net.Listen(at[0], at[1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		if at[0] == "tcp4" {
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			w.targets.TCPAddresses = []string{"127.0.0.1:" + port}
		} else {
			w.targets.SocketPaths = append(w.targets.SocketPaths, at[1])
		}
		go func() { // ends when the listener is closed
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
}

// shareVolumes makes mounts below the volumes appear on the machine, as where systemd runs.
func (w *hostileWorld) shareVolumes(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := unix.Mount(w.volumes, w.volumes, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(w.volumes, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	// A mount of its own peer group: what appears here appears nowhere else.
	for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", w.volumes, "", flag, ""); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.MountPoint == w.volumes {
			w.peerGroup = m.OptionalFields["shared"]
		}
	}
	if w.peerGroup == "" {
		t.Fatal(w.volumes, " is not shared")
	}
}

// judgeMounts returns the mounts of tasks that have appeared on the machine.
func (w *hostileWorld) judgeMounts() (breaches []string) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " "+w.volumes+"/") {
			breaches = append(breaches, "mounts: the mount of a task appears on the machine: "+line)
		}
	}
	return breaches
}

// hostileLogTargets are paths of the machine that the options of log drivers name. Only root can use them, as the socket of the
// machine's log and the keys of the machine.
type hostileLogTargets struct {
	dir                          string // only root can create files in it
	datagramSocket, streamSocket string
	certificate                  string
}

// watchLogTargets records each message that arrives at a socket for logs, each connection to it, and each use of a file beside it.
func (w *hostileWorld) watchLogTargets(t *testing.T) {
	t.Helper()
	dir := filepath.Join(w.canaryDir, "logs")
	w.logs = hostileLogTargets{dir, filepath.Join(dir, "datagram"), filepath.Join(dir, "stream"), filepath.Join(dir, "certificate")}
	w.makeDir(t, dir, 0o755)
	w.makeFile(t, w.logs.certificate, w.newSecret("a certificate of the machine"), 0o600)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: w.logs.datagramSocket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() { // ends when the socket is closed
		message := make([]byte, 1024)
		for {
			n, err := conn.Read(message)
			if err != nil {
				return
			}
			w.addBreach(fmt.Sprintf("logs: the output of a task arrives at a socket of root: %.100q", message[:n]))
		}
	}()
	listener, err := net.Listen("unix", w.logs.streamSocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() { // ends when the socket is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
			w.addBreach("logs: a log driver connects to a socket of root")
		}
	}()
	for _, path := range []string{w.logs.datagramSocket, w.logs.streamSocket} {
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	t.Cleanup(func() { events.Close() })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_OPEN|unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the file is closed
		buffer := make([]byte, 4096)
		for {
			n, err := events.Read(buffer)
			if err != nil {
				return
			}
			for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
				end := unix.SizeofInotifyEvent + binary.NativeEndian.Uint32(rest[12:])
				if name := string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00")); name != "" { // "" is the directory
					w.addBreach("logs: root opens or creates a file of the machine for a task: " + filepath.Join(dir, name))
				}
				rest = rest[end:]
			}
		}
	}()
}

// operator is a configuration of an agent, and what it gives to tasks.
type operator struct {
	name, config string
	grants       []string // capabilities that tasks can add
	deniedIDs    [2]int   // first and last id that tasks of exec must not have; zero means root
	allowsRoot   bool
	hasDocker    bool // if the machine has an engine
	hostModes    bool // tasks can share the namespaces of the machine

	*systemtest.PersistentAgent
	dataDir, victimDir string
	canaries           []string // files of the agent and of another task
}

const hostileClientConfig = `
client {
  bridge_network_name   = %q
  bridge_network_subnet = "172.27.240.0/20"
  chroot_env {
    "/bin"   = "/bin"
    "/etc"   = "/etc"
    "/lib"   = "/lib"
    "/lib64" = "/lib64"
    "/usr"   = "/usr"
    %q       = %q
  }
`

// newOperators returns the configurations that jobs are run with. The first is the default.
func newOperators() []*operator {
	return []*operator{
		{name: "default", hasDocker: true, config: "}\nplugin \"exec\" {}\n"},
		{
			name: "grants", grants: []string{"setuid", "setgid", "net_raw"}, deniedIDs: [2]int{0, 999},
			config: "}\nplugin \"exec\" {\n  config {\n    allow_caps = [\"kill\", \"net_bind_service\", \"net_raw\", \"setgid\", \"setuid\"]\n    denied_host_uids = \"0-999\"\n    denied_host_gids = \"0-999\"\n  }\n}\n",
		},
		{
			name: "root", allowsRoot: true, hostModes: true, deniedIDs: [2]int{1, 1},
			config: "  options = {\n    \"user.denylist\" = \"daemon\"\n  }\n}\nplugin \"exec\" {\n  config {\n    allow_pid_mode = true\n    allow_ipc_mode = true\n    allow_host_mode_root = true\n  }\n}\n",
		},
	}
}

// start starts the agent of an operator, with a task that others attack.
func (o *operator) start(t *testing.T, w *hostileWorld, engine *dockertest.Engine) {
	t.Helper()
	config := fmt.Sprintf(hostileClientConfig, bridgeName, w.chroot, chrootDir)
	for _, name := range hostVolumes {
		path := filepath.Join(w.volumes, name)
		config += fmt.Sprintf("  host_volume %q {\n    path = %q\n    allow_bidirectional = %t\n  }\n", name, path, name != closedVolume)
	}
	config += o.config
	if engine != nil && o.hasDocker {
		config += fmt.Sprintf("plugin \"docker\" {\n  config {\n    endpoint = %q\n    gc {\n      image = false\n    }\n  }\n}\n", engine.Host)
	}
	o.PersistentAgent = systemtest.StartPersistentAgent(t, nil, config)
	o.dataDir = o.DataDir
	secret := w.newSecret("a secret of another task")
	group := api.NewTaskGroup("g", 1)
	if w.hasBridge = o.hasBridge(t); w.hasBridge {
		group.Networks = []*api.NetworkResource{{Mode: "bridge"}}
	}
	victim := api.NewTask("victim", "exec").SetConfig("command", probeInChroot).SetConfig("args", []string{"wait"})
	victim.User = victimUser
	victim.Resources = &api.Resources{CPU: new(1), MemoryMB: new(64)}
	victim.Env = map[string]string{"CANARY": secret}
	victim.Templates = []*api.Template{{EmbeddedTmpl: new(secret), DestPath: new("secrets/canary"), ChangeMode: new("noop")}}
	group.AddTask(victim)
	alloc := o.RunGroupUntilStatus("victim", api.JobTypeService, api.AllocClientStatusRunning, group)
	t.Cleanup(func() { o.stopVictim(t) })
	o.victimDir = filepath.Join(o.dataDir, "alloc", alloc.ID)
	o.canaries = []string{filepath.Join(o.victimDir, "victim/secrets/canary")}
	for _, name := range []string{"token", "keyring.json"} {
		path := filepath.Join(o.dataDir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		o.canaries = append(o.canaries, path)
		w.secrets[strings.TrimSpace(string(text))] = name + " of the agent"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if alloc.NetworkStatus != nil {
		w.targets.NeighbourIPs = append(slices.Clone(w.targets.NeighbourIPs), alloc.NetworkStatus.Address)
	}
	if len(w.targets.SocketPaths) < 4 {
		w.targets.SocketPaths = append(slices.Clone(w.targets.SocketPaths), filepath.Join(o.dataDir, "nomad.sock"), w.engineSocket)
	}
}

// stopVictim ends the last allocation of the agent, and waits until no network namespace of an allocation of the agent is left.
func (o *operator) stopVictim(t *testing.T) {
	t.Helper()
	allocDirs, err := os.ReadDir(filepath.Join(o.dataDir, "alloc"))
	if err != nil {
		t.Error(err)
	}
	if _, _, err := o.Jobs().Deregister("victim", true, nil); err != nil {
		t.Error(err)
	}
	o.WaitUntil("the network namespaces of the allocations are removed", func() (string, bool) {
		var left []string
		for _, dir := range allocDirs {
			if _, err := os.Lstat(filepath.Join(netns.Dir, dir.Name())); err == nil {
				left = append(left, dir.Name())
			}
		}
		return strings.Join(left, " "), len(left) == 0
	})
}

// hasBridge reports whether the kernel has what the network mode "bridge" needs. Containers can lack it.
func (o *operator) hasBridge(t *testing.T) bool {
	t.Helper()
	nodes, _, err := o.Nodes().List(nil)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes %v, %v", nodes, err)
	}
	node, _, err := o.Nodes().Info(nodes[0].ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	return node.Attributes["nomad.bridge.hairpin_mode"] != ""
}

// watchBridge records each frame with the marker of a probe that the machine receives from the bridge, until the test ends.
func (w *hostileWorld) watchBridge(t *testing.T) {
	t.Helper()
	link, err := net.InterfaceByName(bridgeName)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), bridgeName)
	t.Cleanup(func() { file.Close() })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the file is closed
		frame := make([]byte, 2000)
		for {
			n, err := file.Read(frame)
			if err != nil {
				return
			}
			if bytes.Contains(frame[:n], []byte(attack.Marker)) {
				w.addBreach(fmt.Sprintf("network: the machine receives a frame of another identity: %x", frame[:min(n, 60)]))
			}
		}
	}()
}

func (w *hostileWorld) addBreach(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.breaches = append(w.breaches, text)
}

// judge returns what a job has obtained that its operator has not given to it. The allocations have ended.
func (w *hostileWorld) judge(o *operator, j *hostileJob, allocs []*api.Allocation) (breaches []string) {
	for _, alloc := range allocs {
		dir := filepath.Join(o.dataDir, "alloc", alloc.ID)
		for name, state := range alloc.TaskStates {
			facts := j.tasks[alloc.TaskGroup+"/"+name]
			if !facts.attacks {
				continue
			}
			report, isComplete, hasExited := w.readReport(dir, name, state)
			judged := w.judgeReport(o, facts, report)
			for _, line := range report {
				if uids, ok := strings.CutPrefix(line, attack.Identity+" Uid "); ok {
					uid, _, _ := strings.Cut(uids, " ")
					j.uids[alloc.TaskGroup+"/"+name] = uid
				}
			}
			if hasExited && !isComplete && !facts.unlogged {
				judged = append(judged, fmt.Sprintf("report: the probe has exited without its last line; the last is %q", report[len(report)-1]))
			}
			if isComplete {
				w.mu.Lock()
				w.probes[facts.driver]++
				w.mu.Unlock()
			}
			for _, text := range judged {
				breaches = append(breaches, fmt.Sprintf("%s/%s (%s, network %s): %s", alloc.TaskGroup, name, facts.driver, facts.networkMode, text))
			}
		}
		for _, pattern := range []string{"alloc/data", "alloc/tmp", "*/local", "*/tmp", "*/secrets"} {
			found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is correct
			for _, path := range found {
				breaches = append(breaches, w.judgeFiles(o, j, path)...)
			}
		}
	}
	breaches = append(breaches, w.judgeFiles(o, j, w.volumes)...)
	w.mu.Lock()
	defer w.mu.Unlock()
	breaches = append(breaches, w.judgeGuard(*j.ID)...)
	breaches = append(breaches, w.breaches...)
	w.breaches = nil
	return breaches
}

// judgeGuard returns the changes of a job to the file of the machine, and removes them.
func (w *hostileWorld) judgeGuard(job string) (breaches []string) {
	text, err := os.ReadFile(w.targets.UnchangeableFile)
	if err != nil {
		return []string{"files: " + err.Error()}
	}
	rest := ""
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " "+job+"/") {
			breaches = append(breaches, "files: the file of the machine is "+strings.TrimSpace(line))
		} else {
			rest += line
		}
	}
	if len(breaches) > 0 {
		if err := os.WriteFile(w.targets.UnchangeableFile, []byte(rest), 0o666); err != nil {
			breaches = append(breaches, err.Error())
		}
	}
	return breaches
}

// readReport returns the lines of a probe. The log of a task can be complete later than the task has ended.
func (w *hostileWorld) readReport(dir string, name string, state *api.TaskState) (lines []string, isComplete, hasExited bool) {
	hasExited = slices.ContainsFunc(state.Events, func(e *api.TaskEvent) bool { return e.Type == api.TaskTerminated && e.ExitCode == 0 && e.Signal == 0 }) &&
		!slices.ContainsFunc(state.Events, func(e *api.TaskEvent) bool { return e.Type == api.TaskKilling || e.Type == api.TaskSiblingFailed })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(dir, "alloc/logs", name+".stdout.0")) // a task that has not started has no log
		lines = strings.Split(strings.TrimSpace(string(text)), "\n")
		if isComplete = strings.TrimSpace(lines[len(lines)-1]) == attack.Done; isComplete || !hasExited || time.Now().After(deadline) {
			return lines, isComplete, hasExited
		}
	}
}

// judgeReport judges the report of one probe.
func (w *hostileWorld) judgeReport(o *operator, facts taskFacts, lines []string) (breaches []string) {
	breach := func(class, format string, values ...any) {
		breaches = append(breaches, class+": "+fmt.Sprintf(format, values...))
	}
	isExec := facts.driver == "exec"
	isRoot := false
	for _, line := range lines {
		kind, rest, _ := strings.Cut(line, " ")
		name, value, _ := strings.Cut(rest, " ")
		switch kind {
		case attack.Identity:
			if name != "Uid" && name != "Gid" && name != "Groups" || !isExec {
				continue
			}
			for text := range strings.FieldsSeq(value) {
				id, err := strconv.Atoi(text)
				isRoot = isRoot || id == 0
				if err != nil || id >= o.deniedIDs[0] && id <= o.deniedIDs[1] {
					breach("user", "%s", rest)
				}
			}
		case attack.Namespace:
			if w.sharesNamespace(o, facts, name, value) {
				breach("namespace", "the task is in the namespace %s of the machine", name)
			}
		case attack.Read:
			if of := w.findSecret(value); of != "" && (of != secretOfRoot || !o.allowsRoot || !isRoot) {
				breach("files", "the task reads %s at %s", of, name)
			}
		case attack.Write:
			breach("files", "the task writes %s", name)
		case attack.Became:
			id, err := strconv.Atoi(value)
			isDenied := id >= o.deniedIDs[0] && id <= o.deniedIDs[1] || name == "setgroups"
			if isExec && (err != nil || isDenied || !slices.Contains(o.grants, "setuid")) {
				breach("identity", "the task becomes another by %s", rest)
			}
		case attack.Process:
			if name != "signal" || !o.allowsRoot { // processes of root can signal each other
				breach("processes", "%s of %s", name, value)
			}
		case attack.Shared:
			if name == w.peerGroup && strings.HasSuffix(value, "/"+closedVolume) {
				breach("mounts", "what the task mounts in %s would appear on the machine", value)
			}
		case attack.Device:
			if !facts.devices {
				breach("devices", "the task opens %s", rest)
			}
		case attack.Connected:
			if strings.HasPrefix(rest, "/") || strings.TrimSpace(facts.networkMode) != "host" {
				breach("sockets", "the task connects to %s", rest)
			}
		}
	}
	return breaches
}

func (w *hostileWorld) sharesNamespace(o *operator, facts taskFacts, name, value string) bool {
	if value != fmt.Sprint(w.namespaces[name]) {
		return false
	}
	switch name {
	case "mnt":
		return true
	case "pid", "ipc":
		return facts.driver != "exec" || !o.hostModes
	case "net":
		return strings.TrimSpace(facts.networkMode) != "host"
	case "cgroup": // engines and exec share it on machines with cgroups v1 by default
		return facts.cgroupns
	case "uts":
		return facts.driver == "docker" && strings.TrimSpace(facts.networkMode) != "host"
	}
	return false
}

// judgeFiles judges the files that a job has left in a directory. Names of the files of the volumes tell the job.
func (w *hostileWorld) judgeFiles(o *operator, j *hostileJob, dir string) (breaches []string) {
	var left []string
	// Files that vanish during the walk are not an error: other jobs use the volumes, too.
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil
		}
		own, isLeft := ownerOf(path)
		if isLeft && own.job != *j.ID {
			return filepath.SkipDir
		}
		if isLeft && e.IsDir() && filepath.Base(path) == own.dir {
			left = append(left, path)
		}
		if dir == w.volumes && !isLeft {
			return nil
		}
		driver := j.tasks[own.task].driver
		var fsStat unix.Statfs_t
		if err := unix.Statfs(path, &fsStat); err != nil {
			return nil
		}
		isHarmless := driver != "exec" && fsStat.Flags&unix.ST_NOSUID != 0 && fsStat.Flags&unix.ST_NODEV != 0 || driver == "docker" && dir == w.volumes
		shown := fmt.Sprintf("%s (mode %o, uid %d, of %q)", strings.TrimPrefix(path, dir), st.Mode, st.Uid, driver)
		kind := st.Mode & unix.S_IFMT
		uid := int(st.Uid)
		isOwn := fmt.Sprint(uid) == j.uids[own.task] || len(o.grants) > 0 && (uid < o.deniedIDs[0] || uid > o.deniedIDs[1])
		if isLeft && driver == "exec" && !o.allowsRoot && !isOwn {
			breaches = append(breaches, "left: a file of another user "+shown)
		}
		if (kind == unix.S_IFCHR || kind == unix.S_IFBLK) && st.Rdev != 0 && !isHarmless {
			breaches = append(breaches, "left: a device "+shown)
		}
		if kind == unix.S_IFREG && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && !isHarmless {
			breaches = append(breaches, "left: a set-id file "+shown)
		}
		if kind == unix.S_IFREG && st.Size < 1<<16 {
			if n, err := unix.Lgetxattr(path, "security.capability", make([]byte, 64)); err == nil && n > 0 && !isHarmless {
				breaches = append(breaches, "left: a file with capabilities "+shown)
			}
			if text, err := os.ReadFile(path); err == nil && w.findSecret(string(text)) != "" {
				breaches = append(breaches, "files: "+shown+" has "+w.findSecret(string(text)))
			}
		}
		return nil
	})
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			breaches = append(breaches, err.Error())
		}
	}
	return breaches
}

// leftOwner is the task that has left a file, as the name of a directory says.
type leftOwner struct{ dir, job, task string }

func ownerOf(path string) (leftOwner, bool) {
	for name := range strings.SplitSeq(path, "/") {
		if rest, ok := strings.CutPrefix(name, attack.LeftPrefix); ok {
			if parts := strings.SplitN(rest, "-", 4); len(parts) == 4 {
				return leftOwner{name, parts[0], parts[1] + "/" + parts[2]}, true
			}
		}
	}
	return leftOwner{}, false
}

// maxResident is the limit of the memory of each process of an agent.
const maxResident = 1 << 30

// judgeMemory returns the processes of the agent that have used too much memory.
func (o *operator) judgeMemory() (breaches []string) {
	for _, p := range systemtest.FindDataDirProcesses(o.dataDir) {
		if strings.Contains(p.Kind, "/") {
			continue // a task
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
		if err != nil {
			continue // the process has exited
		}
		_, rest, _ := strings.Cut(string(status), "\nVmHWM:")
		var kilobytes int
		if _, err := fmt.Sscan(rest, &kilobytes); err == nil && kilobytes<<10 > maxResident {
			breaches = append(breaches, fmt.Sprintf("memory: %s of the agent has used %d MB", p.Kind, kilobytes>>10))
		}
	}
	return breaches
}

func encodeJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // the values are of the test
	}
	return string(text)
}

// runProbe runs a probe without isolation, and returns its report.
func runProbe(t *testing.T, w *hostileWorld, targets attack.Targets) []string {
	t.Helper()
	cmd := exec.Command(filepath.Join(w.chroot, probeInImage), "attack")
	cmd.Env = []string{attack.TargetsEnvVar + "=" + encodeJSON(targets)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
