package vm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// These are a directory and a user in the virtual machine.
const (
	vmRepositoryDir = "repository"
	vmPackageDir    = vmRepositoryDir + "/cmd/nomad-lite/systemtest/vm" // directory of this package
	vmHostileDir    = vmRepositoryDir + "/cmd/nomad-lite/systemtest/hostile"
	vmUserID        = 1000 // a user without privileges
)

// These are the cgroups in which the test programs run, like those of a service manager.
const (
	vmRootCgroup        = "/session.slice/root.scope"
	vmUndelegatedCgroup = "/session.slice/plain.scope"     // cgroup of a user who cannot write in it
	vmDelegatedCgroup   = "/session.slice/delegated.scope" // cgroup that is delegated to the user

	// vmDelegatedSubgroup is a cgroup in one that is delegated, as systemd makes it with DelegateSubgroup=.
	// Controllers can be enabled beside it.
	vmDelegatedSubgroup = "/session.slice/service.scope/agent"
)

// vmStep is a program that runs in the virtual machine, as a child of its init process.
type vmStep struct {
	name   string
	argv   []string
	cgroup string
	dir    string // working directory; "" means vmPackageDir

	withEngine bool // the step starts Docker engines
	long       bool // the step does not run with -short, because it takes long and most of its cases do not depend on cgroups version 2
}

// vmDriverContractFlag selects the tests of the driver contract that can depend on cgroups.
const vmDriverContractFlag = `-test.run=^TestContract$/^(command\.children|stats|stop|destroy|exec|leaks|recover)`

// vmDockerFlag selects the tests of the driver contract, and of the limits of containers, that can depend on cgroups. Each start of
// a container takes seconds in an emulated machine, so the cases that start many are not among them.
const vmDockerFlag = `-test.run=^Test(Contract|Engine)$/^(stats\.samples|stop\.running|destroy\.releases|exec\.(output|timeout)|recover\.(known|after)|limits|statistics|a_task_beyond_its_memory)`

// skipInVM returns the flag that skips the named tests. It also skips the tests that compare files of the repository with the
// code, because the machine has no repository.
func skipInVM(tests ...string) string {
	return "-test.skip=^(" + strings.Join(append(tests, golden.ReferencePrefix+".*"), "|") + ")$"
}

// These scripts run one at a time, because they check the cgroups of the whole machine.
const (
	vmScriptsFlag = "-test.run=^TestVMScripts$"
	vmSerialFlag  = "-test.parallel=1"
)

var vmSteps = []vmStep{
	{name: "sdk process", argv: []string{"/tests/process.test", skipInVM()}, cgroup: vmRootCgroup, long: true},
	{name: "raw_exec contract", argv: []string{"/tests/rawexec.test", skipInVM("TestContractUnprivileged")}, cgroup: vmRootCgroup, long: true},
	{name: "raw_exec contract unprivileged", argv: []string{"/tests/rawexec.test", vmDriverContractFlag}, cgroup: vmUndelegatedCgroup, long: true},
	{name: "raw_exec contract in delegated cgroups", argv: []string{"/tests/rawexec.test", vmDriverContractFlag}, cgroup: vmDelegatedCgroup},
	{name: "exec contract", argv: []string{"/tests/exec.test", "-test.run=^TestContract$"}, cgroup: vmRootCgroup},
	{name: "exec contract unprivileged", argv: []string{"/tests/exec.test", "-test.run=^TestContract$/(task|exec|recover|stop)"}, cgroup: vmUndelegatedCgroup, long: true},
	{name: "sdk process in a subgroup", argv: []string{"/tests/process.test", "-test.run=^Test(MemoryLimit|MemoryReservation|PidsLimit)$"}, cgroup: vmDelegatedSubgroup},
	{name: "docker contract", argv: []string{"/tests/docker.test", vmDockerFlag}, cgroup: vmRootCgroup, withEngine: true, long: true},
	{name: "keeper", argv: []string{"/tests/keeper.test"}, cgroup: vmRootCgroup, long: true},
	// The skipped tests move large amounts of data, which takes long in an emulated machine.
	{name: "logs", argv: []string{"/tests/logs.test", skipInVM("TestNothingIsLost.*")}, cgroup: vmRootCgroup, long: true},
	// The skipped tests only compute, or compress gigabytes: each takes minutes in an emulated machine.
	{name: "agent", argv: []string{"/tests/agent.test", skipInVM("TestSimulation", "TestClusterSimulation", "TestHostileSnapshots")}, cgroup: vmRootCgroup},
	{name: "cgroups", argv: []string{"/tests/cgroup.test"}, cgroup: vmRootCgroup},
	{name: "reserved cores", argv: []string{"/tests/vm.test", `-test.run=^TestCommandLineScripts$/^(cores|driver_cgroup|agent_cgroup_parent)$`}, cgroup: vmRootCgroup},
	{name: "cgroups that are delegated", argv: []string{"/tests/cgroup.test"}, cgroup: vmDelegatedCgroup},
	// This test runs in the virtual machine because a container, in which tests usually run, may be
	// unable to lower an OOM score.
	{name: "job parser of a protected agent", argv: []string{"/tests/confined.test", "-test.run=^TestChildResetsOOMScore$"}, cgroup: vmRootCgroup},
	{name: "protected agent", argv: []string{"/tests/vm.test", `-test.run=^TestCommandLineScripts$/^oom$`}, cgroup: vmRootCgroup, long: true},
	{name: "run", argv: []string{"/tests/vm.test", `-test.run=^TestCommandLineScripts$/^run_(batch|killed|survives|limits)$`}, cgroup: vmRootCgroup, long: true},
	{name: "run in cgroups", argv: []string{"/tests/vm.test", vmScriptsFlag, vmSerialFlag}, cgroup: vmRootCgroup},
	{name: "run unprivileged", argv: []string{"/tests/vm.test", `-test.run=^TestCommandLineScripts$/^run_(batch|killed)$`}, cgroup: vmUndelegatedCgroup, long: true},
	{name: "run unprivileged in delegated cgroups", argv: []string{"/tests/vm.test", vmScriptsFlag, vmSerialFlag}, cgroup: vmDelegatedCgroup},
	{name: vmStepShortTasks, argv: []string{"/tests/faults.test", "-test.run=^TestShortTasks$", "-test.v", "-sample=2"}, cgroup: vmRootCgroup, long: true},
	{name: "hostile jobs", argv: []string{"/tests/hostile.test", "-test.run=^TestHostileJobsGetNothingMore$", "-sample=40"}, cgroup: vmRootCgroup, dir: vmHostileDir, withEngine: true, long: true},
	// The machine has no podman. What plugins do wrong does not depend on cgroups.
	{name: "other hostile tests", argv: []string{"/tests/hostile.test", "-test.skip=^TestHostileJobs|^TestScripts$/^(hook|hostile_driver|plugin|device)_", "-test.timeout=30m"}, cgroup: vmRootCgroup, dir: vmHostileDir, long: true},
}

// chosenVMSteps returns the steps whose names contain the text, without its underscores, and of these only the short
// ones if short is set.
func chosenVMSteps(text string, short bool) []vmStep {
	return slices.DeleteFunc(slices.Clone(vmSteps), func(s vmStep) bool {
		return short && s.long || !strings.Contains(s.name, strings.ReplaceAll(text, "_", " "))
	})
}

// runVMInit is the init process of the virtual machine. It runs the steps of the mode, and then
// stops the machine.
func runVMInit(guest string) {
	if err := prepareVM(); err != nil {
		fmt.Println("prepare the machine:", err)
	} else if guest == vmModePowerLoss {
		runAndReportVMStep(vmStepPowerLoss, runPowerLossNode)
	} else if guest == vmModeNodeReboots {
		runAndReportVMStep(vmStepNodeReboots, runRebootedNode)
	} else if guest == vmModeClock {
		runAndReportVMStep(vmStepClock, runClockSteps)
	} else {
		for _, step := range chosenVMSteps(os.Getenv(vmStepsEnvVar), os.Getenv(vmShortEnvVar) != "") {
			if seed := os.Getenv(vmSeedEnvVar); seed != "" {
				step.argv = append(step.argv, "-seed="+seed, fmt.Sprintf("-sample=%d", vmShortTaskIterations), "-test.timeout=30m")
			}
			runAndReportVMStep(step.name, step.run)
		}
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// runAndReportVMStep calls do, and writes the result to the console.
func runAndReportVMStep(name string, do func() error) {
	fmt.Println(vmReportBegin + name)
	began := time.Now()
	verdict := "ok"
	if err := do(); err != nil {
		verdict = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	fmt.Printf("\n%s%s after %v\n", vmReportEnd, verdict, time.Since(began).Round(10*time.Millisecond))
}

// leaveInitramfs mounts the root file system a second time and makes the second mount the root directory. pivot_root(2) fails in
// the first mount, because the first mount has no parent.
func leaveInitramfs() error {
	return errors.Join(unix.Mount("/", "/mnt", "", unix.MS_BIND, ""), unix.Chdir("/mnt"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."))
}

func prepareVM() error {
	if err := leaveInitramfs(); err != nil {
		return fmt.Errorf("leave the initramfs: %w", err)
	}
	for _, m := range []struct {
		kind, dir, options string
		flags              uintptr
	}{
		{"proc", "/proc", "", 0},
		{"sysfs", "/sys", "", 0},
		{"devtmpfs", "/dev", "", 0},
		{"devpts", "/dev/pts", "ptmxmode=0666,mode=0620,gid=5", 0},
		{"tmpfs", "/tmp", "mode=1777", 0},
		{"tmpfs", "/run", "mode=0755", 0},
		{"cgroup2", "/sys/fs/cgroup", "", 0},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	for _, link := range []struct{ target, name string }{{"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"}} {
		if err := os.Symlink(link.target, link.name); err != nil {
			return err
		}
	}
	for _, dir := range []string{vmRootCgroup, vmUndelegatedCgroup, vmDelegatedCgroup, vmDelegatedSubgroup} {
		if err := os.MkdirAll("/sys/fs/cgroup"+dir, 0o755); err != nil {
			return err
		}
	}
	service := "/sys/fs/cgroup" + filepath.Dir(vmDelegatedSubgroup)
	for _, dir := range []string{"/sys/fs/cgroup" + vmDelegatedCgroup, service, "/sys/fs/cgroup" + vmDelegatedSubgroup} {
		for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(dir, name), vmUserID, vmUserID); err != nil {
				return err
			}
		}
	}
	for _, dir := range []string{"/sys/fs/cgroup", filepath.Dir(service)} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0); err != nil {
			return err
		}
	}
	if err := unix.Setxattr(service, "user.delegate", []byte("1"), 0); err != nil {
		return fmt.Errorf("mark %s as delegated: %w", service, err)
	}
	if err := unix.Sethostname([]byte("machine")); err != nil {
		return err
	}
	return setInterfaceUp("lo", nil)
}

// setInterfaceUp sets a network interface up, and gives it an IPv4 address unless ip is nil.
func setInterfaceUp(name string, ip net.IP) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if ip != nil {
		if err := errors.Join(request.SetInet4Addr(ip.To4()), unix.IoctlIfreq(s, unix.SIOCSIFADDR, request)); err != nil {
			return fmt.Errorf("address of %s: %w", name, err)
		}
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request)
}

// run runs the program of a step. A step that leaves processes or files behind fails.
func (s vmStep) run() error {
	if s.withEngine {
		if err := loadVMModules(); err != nil {
			return err
		}
	}
	before := findVMLeftovers()
	cgroup, err := os.Open("/sys/fs/cgroup" + s.cgroup)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	attr := &syscall.ProcAttr{
		Dir:   "/" + cmp.Or(s.dir, vmPackageDir),
		Env:   []string{"PATH=/usr/bin:/bin", "HOME=/root", "TMPDIR=/tmp", "LANG=C", slowtest.EnvVar + "=1", systemtest.HostileProbeEnvVar + "=/tests/probe"},
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(cgroup.Fd())},
	}
	if s.withEngine {
		attr.Env = append(attr.Env, "NOMAD_LITE_CI=1")
	}
	if s.cgroup != vmRootCgroup {
		attr.Env[1] = "HOME=/home"
		attr.Sys.Credential = &syscall.Credential{Uid: vmUserID, Gid: vmUserID}
	}
	argv := slices.Concat(s.argv[:1], []string{"-test.v", "-test.timeout=12m"}, s.argv[1:])
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return err
	}
	status := vmReapUntilExit(pid)
	if status != 0 {
		err = fmt.Errorf("failed with wait status %#x", int(status))
	}
	if s.withEngine {
		removeEngineFiles()
	}
	return errors.Join(err, s.findLeftovers(before))
}

// vmReapUntilExit waits for orphaned processes, as an init process must, until the child pid has
// exited.
func vmReapUntilExit(pid int) unix.WaitStatus {
	for {
		var waitStatus unix.WaitStatus
		if got, err := unix.Wait4(-1, &waitStatus, 0, nil); err == nil && got == pid || err == unix.ECHILD {
			return waitStatus
		}
	}
}

// findLeftovers returns an error if the step has left processes, mounts, cgroups or files behind,
// and removes them.
func (s vmStep) findLeftovers(before []string) error {
	var leftovers []string
	for deadline := time.Now().Add(systemtest.WaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		for got := 1; got > 0; {
			got, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
		leftovers = slices.DeleteFunc(findVMLeftovers(), func(trace string) bool { return slices.Contains(before, trace) })
		if len(leftovers) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			cleanUpVM(leftovers)
			return fmt.Errorf("left behind: %q", leftovers)
		}
	}
}

// cleanUpVM removes the leftovers of a step, so that they do not affect the next step.
func cleanUpVM(left []string) {
	unix.Kill(-1, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(-1, nil, 0, nil); err == unix.ECHILD {
			break
		}
	}
	for _, trace := range slices.Backward(left) { // backward, so that the content of a directory is removed before the directory
		if strings.HasPrefix(trace, "/sys/fs/cgroup/") {
			unix.Rmdir(trace)
		} else if strings.HasPrefix(trace, "/") {
			os.RemoveAll(trace)
		}
	}
}

// userDir matches the directories of users below a temporary directory.
var userDir = regexp.MustCompile(`^nomad-lite-\d+(-run)?$`)

// findVMLeftovers returns all processes, mounts, cgroups and files that a step can leave behind in
// the virtual machine.
func findVMLeftovers() (all []string) {
	// testscript does not remove its empty directory if only some scripts of a test run.
	empty, _ := filepath.Glob("/tmp/go-test-script*")
	for _, dir := range empty {
		unix.Rmdir(dir)
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		const kthreaddPID = "2"
		if pid := filepath.Base(dir); pid != "1" && pid != kthreaddPID && fields[1] != kthreaddPID {
			command, _ := os.ReadFile(dir + "/cmdline")
			all = append(all, "process "+pid+" "+fields[0]+" "+strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for mount := range strings.SplitSeq(string(mounts), "\n") {
		if !strings.Contains(mount, " "+netns.Dir+" ") { // the first namespace mounts the directory for all later ones
			all = append(all, mount)
		}
	}
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, pattern := range []string{"/tmp/*", "/tmp/nomad-lite-*/*", "/run/*", "/run/nomad-lite/*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			// These directories are never removed.
			if base := filepath.Base(path); path == "/run/nomad-lite" || path == "/run/mount" || path == netns.Dir || base == "lock" || strings.HasPrefix(base, "nomad-lite-bridge-") ||
				userDir.MatchString(base) {
				continue
			}
			all = append(all, path)
		}
	}
	return all
}

// ownSession returns the name of the session of the virtual machine in which the test runs. Outside of the machine it
// skips the test.
func ownSession(t *testing.T) string {
	t.Helper()
	own, err := osprocess.OwnCgroup()
	if err != nil {
		t.Fatal(err)
	}
	session, ok := strings.CutPrefix(own, "/session.slice/")
	if !ok {
		t.Skip("is for the machine of TestVM")
	}
	return session
}

// TestCommandLineScripts runs scripts of package commands.
func TestCommandLineScripts(t *testing.T) {
	ownSession(t)
	testscript.Run(t, systemtest.NewScriptParams("../commands/testdata/script"))
}

// TestVMScripts runs the scripts that test cgroups version 2.
func TestVMScripts(t *testing.T) {
	session := ownSession(t)
	params := systemtest.NewScriptParams("testdata/scripts")
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv("SLICE", "/nomad.slice")
		if os.Geteuid() != 0 {
			env.Setenv("SLICE", "/session.slice/"+session+"/nomad.slice")
		}
		return setup(env)
	}
	testscript.Run(t, params)
}
