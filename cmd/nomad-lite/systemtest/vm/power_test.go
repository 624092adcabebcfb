package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentsocket"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const (
	vmStepPowerLoss        = "power loss"
	powerLossStartedPrefix = "tasks of this boot: " // start of a line on the console, which continues with the number of started tasks
	powerLossTaskCount     = 50
)

// testVMPowerLoss cuts the power of a node while it starts 50 tasks, and again, unless with -short, while it restarts
// them. After the last boot the state must be consistent.
func testVMPowerLoss(t *testing.T, m vm) {
	m.disk = makeVMDisk(t)
	cuts := []int{powerLossTaskCount / 4, powerLossTaskCount / 2, 0}
	if testing.Short() {
		cuts = cuts[1:]
	}
	for _, cut := range cuts {
		lost := false
		reports, rest := m.boot(t, vmModePowerLoss, func(line string) bool {
			count, ok := strings.CutPrefix(line, powerLossStartedPrefix)
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			lost = ok && cut > 0 && n >= cut
			return lost
		})
		report := reports[vmStepPowerLoss]
		t.Logf("%s\n%s", report.result, report.output)
		if cut > 0 && !lost || cut == 0 && !strings.HasPrefix(report.result, "ok") {
			t.Fatalf("what else the machine wrote:\n%s", rest)
		}
	}
}

// makeVMDisk makes a permanent disk for a virtual machine, and returns its path.
func makeVMDisk(t *testing.T) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	if out, err := exec.Command("mke2fs", "-q", "-t", "ext4", disk, "512M").CombinedOutput(); err != nil {
		t.Fatalf("make a file system (Debian: apt-get install e2fsprogs): %v\n%s", err, out)
	}
	return disk
}

// mountVMDisk mounts the permanent disk of the virtual machine at vmDiskDir.
func mountVMDisk() error {
	if err := os.MkdirAll(vmDiskDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev/nvme0n1", vmDiskDir, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount the disk: %w", err)
	}
	return nil
}

// vmDiskDir is where the permanent disk of the virtual machine is mounted.
const vmDiskDir = "/disk"

// These paths are on the permanent disk of the virtual machine. The record directory has a file for
// each task, with a line for each start of the task. A task holds a lock on its file for as long as
// it runs.
const (
	powerLossDataDir       = vmDiskDir + "/node"
	powerLossRecordDir     = vmDiskDir + "/tasks"
	powerLossDoubleRunFile = vmDiskDir + "/doubled"
)

// powerLossBootRecordDir has a file for each task, with a line for each start since the machine
// booted.
const powerLossBootRecordDir = "/run/tasks"

const powerLossConfig = `
ports {
  http = 0
}
client {
  cpu_total_compute = 100000
  memory_total_mb   = 100000
  disk_total_mb     = 100000
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

const powerLossScript = `exec 9>>` + powerLossRecordDir + `/$NOMAD_ALLOC_INDEX
flock -n 9 || echo $NOMAD_ALLOC_INDEX >> ` + powerLossDoubleRunFile + `
echo $NOMAD_ALLOC_ID >&9
echo $NOMAD_ALLOC_ID >> ` + powerLossBootRecordDir + `/$NOMAD_ALLOC_INDEX
exec sleep 100000`

// runPowerLossNode runs a node with a job of 50 tasks. It prints the number of started tasks, and
// returns when all are running.
func runPowerLossNode() error {
	if err := mountVMDisk(); err != nil {
		return err
	}
	for _, dir := range []string{powerLossBootRecordDir, powerLossRecordDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	notes, err := os.ReadDir(powerLossRecordDir)
	if err != nil {
		return err
	}
	fmt.Println("tasks that have started before:", len(notes))
	const configPath = "/etc/agent.hcl"
	if err := os.WriteFile(configPath, []byte(powerLossConfig), 0o600); err != nil {
		return err
	}
	began := time.Now()
	agent, err := startVMCommand("agent", "-config", configPath, "-data-dir", powerLossDataDir, "-log-level", "warn")
	if err != nil {
		return err
	}
	client, err := api.NewClient(&api.Config{Address: "unix://" + filepath.Join(powerLossDataDir, agentsocket.FileName)})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := registerVMJob(client, newVMJob("power", powerLossTaskCount, powerLossScript)); err != nil {
		return err
	}
	fmt.Println("the job is there after", time.Since(began))
	for started := 0; started < powerLossTaskCount; time.Sleep(5 * time.Millisecond) {
		found, err := os.ReadDir(powerLossBootRecordDir)
		if err != nil {
			return err
		}
		if len(found) > started {
			started = len(found)
			fmt.Println(powerLossStartedPrefix, started)
		}
		// Beside other tests, an emulated machine starts its first task only after two minutes.
		if time.Since(began) > 10*time.Minute {
			return fmt.Errorf("%d tasks after ten minutes", started)
		}
	}
	err = checkPowerLossTasks(client)
	if err := unix.Kill(agent, unix.SIGINT); err != nil {
		return err
	}
	vmReapUntilExit(agent)
	return errors.Join(err, verifyVMState(powerLossDataDir))
}

// verifyVMState returns an error if the state file of a stopped agent is damaged.
func verifyVMState(dataDir string) error {
	verify, err := startVMCommand("operator", "state", "verify", dataDir)
	if err == nil && vmReapUntilExit(verify) != 0 {
		err = errors.New("the state file is damaged")
	}
	return err
}

// startVMCommand starts this program with other arguments, as a child of the init process.
func startVMCommand(args ...string) (pid int, err error) {
	return syscall.ForkExec("/proc/self/exe", append([]string{"nomad-lite"}, args...), &syscall.ProcAttr{
		Env:   []string{"PATH=/usr/bin:/bin", "HOME=/root"},
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// newVMJob returns a job of tasks that execute a shell script.
func newVMJob(id string, count int, script string) *api.Job {
	task := api.NewTask("t", "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", script})
	task.Resources = &api.Resources{CPU: new(10), MemoryMB: new(10)}
	return api.NewServiceJob(id, id, "global", 50).AddTaskGroup(api.NewTaskGroup("g", count).AddTask(task))
}

// registerVMJob waits until there is a node, and registers the job unless it exists.
func registerVMJob(client *api.Client, job *api.Job) error {
	err := retryInVM(func() error {
		nodes, _, err := client.Nodes().List(nil)
		if err == nil && (len(nodes) != 1 || nodes[0].Status != api.NodeStatusReady) {
			err = fmt.Errorf("no node is ready: %d nodes", len(nodes))
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, _, err := client.Jobs().Info(*job.ID, nil); err == nil {
		return nil
	}
	_, _, err = client.Jobs().Register(job, nil)
	return err
}

// checkPowerLossTasks compares the tasks that the agent reports with the running processes.
func checkPowerLossTasks(client *api.Client) error {
	var allocs []*api.AllocationListStub
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if allocs, _, err = client.Jobs().Allocations("power", true, nil); err != nil {
			return err
		}
		running := 0
		for _, a := range allocs {
			if s := a.TaskStates["t"]; a.ClientStatus == api.AllocClientStatusRunning && s != nil && s.State == model.TaskRunning {
				running++
			}
		}
		if running == powerLossTaskCount {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the agent says that %d tasks run", running)
		}
	}
	var failures []error
	fault := func(format string, args ...any) { failures = append(failures, fmt.Errorf(format, args...)) }
	if doubled, err := os.ReadFile(powerLossDoubleRunFile); !errors.Is(err, os.ErrNotExist) {
		fault("tasks that ran twice at once: %q, %v", doubled, err)
	}
	if len(allocs) != powerLossTaskCount {
		fault("%d allocations", len(allocs))
	}
	for _, a := range allocs {
		index := strings.TrimSuffix(strings.TrimPrefix(a.Name, "power.g["), "]")
		// The file must have a single line: the task was started once since the machine booted.
		if text, err := os.ReadFile(filepath.Join(powerLossBootRecordDir, index)); string(text) != a.ID+"\n" {
			fault("%s: allocation %s, started %q, %v", a.Name, a.ID, text, err)
		}
	}
	// A shell that has written its record needs a moment to become sleep.
	sleepers := countPowerLossSleepers()
	for deadline := time.Now().Add(10 * time.Second); sleepers < powerLossTaskCount && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		sleepers = countPowerLossSleepers()
	}
	if sleepers != powerLossTaskCount {
		fault("%d processes", sleepers)
	}
	return errors.Join(failures...)
}

func countPowerLossSleepers() (count int) {
	for _, trace := range findVMLeftovers() {
		if strings.HasPrefix(trace, "process ") && strings.HasSuffix(trace, " sleep 100000 ") {
			count++
		}
	}
	return count
}
