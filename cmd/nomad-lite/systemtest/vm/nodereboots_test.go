package vm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/peers"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const vmStepNodeReboots = "reboots of a cluster node"

// These variables of the init process are the ports of the server at this machine, "HTTP,RPC", and how the boot ends.
const (
	vmServerPortsEnvVar = "NOMAD_LITE_VM_SERVER"
	vmBootEndEnvVar     = "NOMAD_LITE_VM_END"
)

const (
	bootEndReboot    = "reboot"     // the agent is stopped, then all other processes
	bootEndPowerLoss = "power_loss" // the console gets losePowerLine
)

// These heartbeats make a server keep a node that reboots, or give it up at once.
const (
	patientHeartbeats   = "heartbeat_grace = \"2h\"\n"
	impatientHeartbeats = "min_heartbeat_ttl = \"1s\"\n  heartbeat_grace = \"1s\"\n  failover_heartbeat_ttl = \"1s\"\n"
)

// testVMNodeReboots reboots a node of a stock server with 200 tasks, cuts its power, and reboots it again. The last time the server
// gives the node up meanwhile, and replaces its allocations. After each boot each allocation that the server wants must run, as the
// server shows it, and must have been started once.
func testVMNodeReboots(t *testing.T, m vm) {
	program := peers.ProgramOrSkip(t, "nomad")
	m.disk, m.network = makeVMDisk(t), true
	s := newVMServer(t, program)
	s.restart(patientHeartbeats)
	for n, end := range []string{bootEndReboot, bootEndPowerLoss, bootEndReboot, bootEndReboot} {
		if n == 3 {
			s.restart(impatientHeartbeats)
			s.awaitNodeStatus(api.NodeStatusDown)
			s.restart(patientHeartbeats)
		}
		lost := false
		reports, rest := m.boot(t, vmModeNodeReboots, func(line string) bool {
			lost = strings.TrimSpace(line) == losePowerLine
			return lost
		}, fmt.Sprintf("%s=%d,%d", vmServerPortsEnvVar, s.ports[0], s.ports[1]), vmBootEndEnvVar+"="+end)
		report := reports[vmStepNodeReboots]
		t.Logf("boot %d: %s\n%s", n+1, report.result, report.output)
		if end == bootEndPowerLoss && !lost || end != bootEndPowerLoss && !strings.HasPrefix(report.result, "ok") {
			t.Fatalf("what else the machine wrote:\n%s", rest)
		}
	}
}

// vmServer is a stock server on this machine, which a virtual machine reaches.
type vmServer struct {
	t            *testing.T
	program, dir string
	ports        []int // HTTP, RPC and Serf
	process      *exec.Cmd
	*api.Client
}

// newVMServer returns a server that is not started.
func newVMServer(t *testing.T, program string) *vmServer {
	t.Helper()
	s := &vmServer{t: t, program: program, dir: t.TempDir(), ports: peers.FindFreePorts(t, 3)}
	var err error
	if s.Client, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", s.ports[0])}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

// restart starts the server with lines of the block server, after it has killed one that runs, and waits until it is the leader.
func (s *vmServer) restart(lines string) {
	s.t.Helper()
	s.kill()
	configFile := filepath.Join(s.dir, "agent.hcl")
	writeTestFile(s.t, configFile, systemtest.FormatStockAgentConfig("server", filepath.Join(s.dir, "data"), s.ports, fmt.Sprintf("127.0.0.1:%d", s.ports[1]),
		"server {\n  enabled = true\n  bootstrap_expect = 1\n  "+lines+"}\n"))
	s.process = systemtest.NewStockAgentCommand(s.program, configFile)
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the server is the leader", func() error {
		_, _, err := s.Nodes().List(nil)
		return err
	})
}

func (s *vmServer) kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
}

// awaitNodeStatus waits until the server has one node, with a status.
func (s *vmServer) awaitNodeStatus(status string) {
	s.t.Helper()
	s.eventually("the node is "+status, func() error {
		nodes, _, err := s.Nodes().List(nil)
		if err == nil && (len(nodes) != 1 || nodes[0].Status != status) {
			err = fmt.Errorf("%d nodes, the first is %s", len(nodes), nodes[0].Status)
		}
		return err
	})
}

func (s *vmServer) eventually(description string, f func() error) {
	s.t.Helper()
	if err := retryInVM(f); err != nil {
		s.t.Fatalf("%s: %v", description, err)
	}
}

// retryInVM calls f until it returns nil, for at most ten minutes, and returns the last error. An emulated machine can be slow.
func retryInVM(f func() error) error {
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if err := f(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// These paths are on the permanent disk of the virtual machine. A task appends the lines that it prints to a file of its allocation,
// and holds a lock on the file of its index. rebootSavedDir has copies of the files of the allocations from the end of the last boot.
const (
	rebootDataDir       = vmDiskDir + "/node"
	rebootRecordDir     = vmDiskDir + "/tasks"
	rebootLockDir       = vmDiskDir + "/instances"
	rebootSavedDir      = vmDiskDir + "/saved"
	rebootDoubleRunFile = vmDiskDir + "/doubled"
)

// rebootLogFile is the log of a task, in the directory of its allocation.
const rebootLogFile = "alloc/logs/t.stdout.0"

const rebootTaskCount = 200

// The trap only sets a variable, because it can run between the two outputs of print.
const rebootScript = `exec 8>>` + rebootLockDir + `/$NOMAD_ALLOC_INDEX 9>>` + rebootRecordDir + `/$NOMAD_ALLOC_ID
flock -n 8 || echo $NOMAD_ALLOC_ID >> ` + rebootDoubleRunFile + `
print() { echo "$*"; echo "$*" >&9; }
trap 'stopped=yes; kill $! 2>/dev/null' TERM
print start $(cat /proc/sys/kernel/random/boot_id)
i=0
while [ -z "$stopped" ]; do
  i=$((i+1))
  print $i
  sleep 30 8>&- 9>&- &
  wait $!
done
print end`

// runRebootedNode runs the node, and returns when its tasks have been checked and stopped, or when the power is not cut.
func runRebootedNode() error {
	if err := errors.Join(loadVMModules(), setInterfaceUp("eth0", net.IPv4(10, 0, 2, 15)), mountVMDisk()); err != nil {
		return err
	}
	for _, dir := range []string{rebootRecordDir, rebootLockDir, rebootSavedDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	httpPort, rpcPort, _ := strings.Cut(os.Getenv(vmServerPortsEnvVar), ",")
	if err := errors.Join(forwardPortToHost(httpPort), forwardPortToHost(rpcPort)); err != nil {
		return err
	}
	const configFile = "/etc/agent.hcl"
	if err := os.WriteFile(configFile, []byte(powerLossConfig), 0o600); err != nil {
		return err
	}
	agent, err := startVMCommand("agent", "-config", configFile, "-data-dir", rebootDataDir, "-servers", "127.0.0.1:"+rpcPort, "-log-level", "warn")
	if err != nil {
		return err
	}
	server, err := api.NewClient(&api.Config{Address: "http://127.0.0.1:" + httpPort})
	if err != nil {
		return err
	}
	defer server.Close()
	job := newVMJob("reboot", rebootTaskCount, rebootScript)
	// A task that a reboot has ended is not a failure, for which there is no restart.
	job.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	job.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	if err := registerVMJob(server, job); err != nil {
		return err
	}
	if err := retryInVM(func() error { return checkRebootTasks(server) }); err != nil {
		return err
	}
	if os.Getenv(vmBootEndEnvVar) == bootEndReboot {
		if err := stopAllProcesses(agent); err != nil {
			return err
		}
	}
	return endRebootedNode()
}

// forwardPortToHost forwards connections to a loopback port to the same port of this machine, so that the addresses of a server are
// right in both machines.
func forwardPortToHost(port string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	forward := func(client net.Conn) {
		defer client.Close()
		host, err := net.Dial("tcp", "10.0.2.2:"+port) // the address of QEMU's user network
		if err != nil {
			return
		}
		defer host.Close()
		go func() {
			_, _ = io.Copy(host, client)
			host.Close()
		}()
		_, _ = io.Copy(client, host)
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go forward(client)
		}
	}()
	return nil
}

// checkRebootTasks compares the allocations that the server shows with the records of their tasks, and the logs that the server
// shows with the lines that the tasks have printed.
func checkRebootTasks(server *api.Client) error {
	boot, err := osprocess.BootID()
	if err != nil {
		return err
	}
	allocs, _, err := server.Jobs().Allocations("reboot", true, nil)
	if err != nil {
		return err
	}
	recorded, err := os.ReadDir(rebootRecordDir)
	if err != nil {
		return err
	}
	if len(recorded) != len(allocs) {
		return fmt.Errorf("%d allocations have started, the server has %d", len(recorded), len(allocs))
	}
	if err := checkSingleStarts(); err != nil {
		return err
	}
	running := 0
	for _, a := range allocs {
		record, err := os.ReadFile(filepath.Join(rebootRecordDir, a.ID))
		if err != nil {
			return err
		}
		_, sinceBoot, started := bytes.Cut(record, []byte("start "+boot+"\n"))
		state := a.TaskStates["t"]
		if a.DesiredStatus != api.AllocDesiredStatusRun {
			if started || a.ClientStatus == api.AllocClientStatusRunning || a.ClientStatus == api.AllocClientStatusPending {
				return fmt.Errorf("allocation %s, desired %s, is %s, started since the boot: %t", a.ID, a.DesiredStatus, a.ClientStatus, started)
			}
			continue
		}
		running++
		if !started || a.ClientStatus != api.AllocClientStatusRunning || state == nil || state.State != model.TaskRunning || state.Failed || state.Restarts != 0 {
			return fmt.Errorf("allocation %s is %s, started since the boot: %t, %+v", a.ID, a.ClientStatus, started, state)
		}
		file, err := server.AllocFS().Cat(&api.Allocation{ID: a.ID}, rebootLogFile, nil)
		if err != nil {
			return err
		}
		log, err := io.ReadAll(file)
		file.Close()
		if err != nil {
			return err
		}
		saved, err := os.ReadFile(filepath.Join(rebootSavedDir, a.ID))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		_, logSinceBoot, _ := bytes.Cut(log, []byte("start "+boot+"\n"))
		if !bytes.HasPrefix(log, saved) || !bytes.HasPrefix(logSinceBoot, sinceBoot) {
			return fmt.Errorf("the log of allocation %s is %q; the task has printed %q, of which %d bytes are on the disk since the last boot", a.ID, log, record, len(saved))
		}
	}
	if running != rebootTaskCount {
		return fmt.Errorf("the server wants %d of %d allocations", running, len(allocs))
	}
	return nil
}

// checkSingleStarts checks that no task was started twice during one boot, and that no two instances with the same index ran at once.
func checkSingleStarts() error {
	doubled, err := os.ReadFile(rebootDoubleRunFile)
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tasks that ran twice at once: %q, %v", doubled, err)
	}
	return forEachRebootRecord(func(id string, record []byte) error {
		seen := map[string]bool{}
		for line := range strings.Lines(string(record)) {
			if strings.HasPrefix(line, "start ") && seen[line] {
				return fmt.Errorf("allocation %s was started twice: %q", id, record)
			}
			seen[line] = true
		}
		return nil
	})
}

// forEachRebootRecord calls f with the lines that the task of each allocation has printed.
func forEachRebootRecord(f func(id string, record []byte) error) error {
	files, err := os.ReadDir(rebootRecordDir)
	for _, file := range files {
		record, readErr := os.ReadFile(filepath.Join(rebootRecordDir, file.Name()))
		if err = errors.Join(err, readErr); err == nil {
			err = f(file.Name(), record)
		}
	}
	return err
}

// stopAllProcesses stops the agent, and then all processes but the init process, as a reboot does.
func stopAllProcesses(agent int) error {
	if err := unix.Kill(agent, unix.SIGINT); err != nil {
		return err
	}
	vmReapUntilExit(agent)
	if err := verifyVMState(rebootDataDir); err != nil {
		return err
	}
	if err := unix.Kill(-1, unix.SIGTERM); err != nil {
		return err
	}
	return retryInVM(func() error {
		for {
			switch pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); {
			case err == unix.ECHILD:
				return nil
			case pid == 0:
				return fmt.Errorf("processes ignore SIGTERM: %q", findVMLeftovers())
			}
		}
	})
}

// endRebootedNode writes the lines that the logs have to the disk, and all other files. With bootEndPowerLoss it asks for the loss of
// power.
func endRebootedNode() error {
	boot, err := osprocess.BootID()
	if err != nil {
		return err
	}
	err = errors.Join(checkSingleStarts(), forEachRebootRecord(func(id string, record []byte) error {
		if !bytes.Contains(record, []byte("start "+boot)) {
			return nil // the allocation has ended before
		}
		return errors.Join(os.WriteFile(filepath.Join(rebootSavedDir, id), record, 0o600), retryInVM(func() error {
			log, err := os.ReadFile(filepath.Join(rebootDataDir, "alloc", id, rebootLogFile))
			if err == nil && !bytes.HasPrefix(log, record) {
				err = fmt.Errorf("the log of allocation %s is %q, the task has printed %q", id, log, record)
			}
			return err
		}))
	}))
	unix.Sync()
	if err != nil || os.Getenv(vmBootEndEnvVar) == bootEndReboot {
		return err
	}
	fmt.Println(losePowerLine)
	time.Sleep(time.Hour) // this machine is killed
	return errors.New("the power was not cut")
}
