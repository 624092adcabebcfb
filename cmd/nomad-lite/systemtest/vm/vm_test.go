package vm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest/vmimage"
)

// vmEnvVar enables the test that boots virtual machines. "make test-vm" and "make test-vm-short" set it.
const vmEnvVar = "NOMAD_LITE_VM"

// vmShortEnvVar tells the init process of the virtual machine that the tests run with -short.
const vmShortEnvVar = "NOMAD_LITE_VM_SHORT"

// vmStepsEnvVar is a part of the names of the steps, or of the installations, that run; empty means all. An underscore
// stands for a space.
const vmStepsEnvVar = "NOMAD_LITE_VM_STEPS"

// vmSeedEnvVar tells the init process of the virtual machine the seed of TestShortTasksInVM.
const vmSeedEnvVar = "NOMAD_LITE_VM_SEED"

// These are modes of the virtual machine. The kernel passes the mode to the init process as the
// value of vmEnvVar.
const (
	vmModeAllSteps    = "guest"   // run all steps
	vmModePowerLoss   = "power"   // run a node whose power is cut
	vmModeNodeReboots = "reboots" // run a node of a cluster, which is rebooted
)

const vmHostilePackage = "./cmd/nomad-lite/systemtest/hostile"

// vmPackages are the packages whose tests also run in the virtual machine. The test program of the first one is its init process.
var vmPackages = []string{
	"./cmd/nomad-lite/systemtest/vm",
	"./sdk/process",
	"./builtin/docker",
	"./builtin/exec",
	"./builtin/rawexec",
	vmHostilePackage,
	"./cmd/nomad-lite/systemtest/faults",
	"./internal/cgroup",
	"./plugins/host/keeper",
	"./runtime/agent",
	"./runtime/job/jobspec/confined",
	"./runtime/node/files/logs",
	"./runtime/node/orphans",
}

// vmTools are the programs that the tests in the virtual machine use. They are copied from this
// machine.
var vmTools = []string{
	"sh", "cat", "chmod", "chown", "chroot", "cmp", "cp", "curl", "cut", "dirname", "env", "find", "flock", "grep", "head", "id", "ip", "ln", "ls", "mkdir", "mknod", "mount", "mv", "ps", "rm", "sed", "setpriv", "setsid",
	"sleep", "sort", "stat", "stty", "tail", "tee", "timeout", "touch", "tr", "true", "tty", "unshare", "wc",
}

// TestVM runs nomad-lite in a virtual machine that has only cgroups version 2. With -short, it runs the steps that only
// such a machine can run, and cuts the power once.
//
// The machine is emulated, so that the test needs no hardware virtualization. Its file system is an
// initramfs, and its init process is this test program; for installations, it is a Debian on a disk, with systemd.
func TestVM(t *testing.T) {
	if os.Getenv(vmEnvVar) == "" {
		t.Skipf("boots virtual machines, for minutes; %s=1 runs it", vmEnvVar)
	}
	kernel := findVMKernel(t)
	chosen := os.Getenv(vmStepsEnvVar)
	stepsChosen := len(chosenVMSteps(chosen, testing.Short())) > 0
	isChosen := func(step string) bool {
		return !testing.Short() && strings.Contains(step, strings.ReplaceAll(chosen, "_", " "))
	}
	rebootsChosen, clockChosen := isChosen(vmStepNodeReboots), isChosen(vmStepClock)
	if stepsChosen || rebootsChosen || clockChosen {
		packages := packagesOfSteps(chosenVMSteps(chosen, testing.Short()))
		m := vm{kernel: kernel, image: filepath.Join(t.TempDir(), "initramfs")}
		began := time.Now()
		writeVMImage(t, m, buildVMTests(t, packages, t.TempDir()))
		t.Logf("image made in %v", time.Since(began).Round(100*time.Millisecond))
		if stepsChosen {
			t.Run("tests", func(t *testing.T) { testVMSteps(t, m) })
		}
		if rebootsChosen {
			t.Run(vmStepNodeReboots, func(t *testing.T) { testVMNodeReboots(t, m) })
		}
		if chosen == "" {
			t.Run("power loss", func(t *testing.T) { testVMPowerLoss(t, m) })
		}
		if clockChosen {
			t.Run("clock", func(t *testing.T) { testVMClockSteps(t, m) })
		}
	}
	if lives := chosenInstallations(chosen); len(lives) > 0 && !testing.Short() {
		testVMInstallations(t, kernel, lives)
	}
}

// findVMKernel returns the path of the kernel of virtual machines. It skips the test on another architecture.
func findVMKernel(t *testing.T) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("knows how to boot amd64 only")
	}
	kernel, err := vmimage.FindReadableKernel()
	if err != nil {
		t.Fatal(err)
	}
	return kernel
}

// testVMSteps runs the tests that affect processes: as root, and as a user with and without
// delegated cgroups. No test program may leave anything behind.
func testVMSteps(t *testing.T, m vm) {
	reports, rest := m.boot(t, vmModeAllSteps, nil)
	for _, step := range chosenVMSteps(os.Getenv(vmStepsEnvVar), testing.Short()) {
		t.Run(step.name, func(t *testing.T) {
			report, ok := reports[step.name]
			switch {
			case !ok:
				t.Fatal("the machine did not get that far")
			case !strings.HasPrefix(report.result, "ok"):
				t.Errorf("%s\n%s", report.result, report.output)
			case testing.Verbose():
				t.Logf("%s\n%s", report.result, report.output)
			}
		})
	}
	if t.Failed() {
		t.Logf("what else the machine wrote:\n%s", rest)
	}
}

// vm holds the paths of a virtual machine's files.
type vm struct {
	kernel string
	image  string // path of the initramfs; "" means that the root file system is on the disk
	disk   string // path of the disk image; "" means no disk

	network bool // the machine reaches the loopback ports of this one at 10.0.2.2, through the user network of QEMU
}

// boot runs the virtual machine, whose init process is this test program, until it shuts down. When cut returns true for
// a line of the console, boot cuts the power.
// The variables are further ones of the environment of the init process.
func (v vm) boot(t *testing.T, guest string, cut func(line string) bool, variables ...string) (reports map[string]vmReport, rest string) {
	t.Helper()
	arguments := strings.Join(append(variables, vmEnvVar+"="+guest, vmStepsEnvVar+"="+os.Getenv(vmStepsEnvVar)), " ")
	if testing.Short() {
		arguments += " " + vmShortEnvVar + "=1"
	}
	return v.bootKernel(t, arguments, cut)
}

// bootKernel is boot for any init process. The arguments are added to those of the kernel.
func (v vm) bootKernel(t *testing.T, arguments string, cut func(line string) bool) (reports map[string]vmReport, rest string) {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal("there is no qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Minute)
	defer cancel()
	// The memory holds a copy of the test program for each of its names.
	// The emulation is a quarter faster for a processor without AVX. The QEMU machine "microvm"
	// boots faster, but it has no timer by which the kernel can calibrate the others, and often
	// hung on a busy host.
	args := []string{"-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "6144",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", v.kernel, "-append", "console=ttyS0 quiet panic=-1 reboot=t mitigations=off tsc=reliable " + arguments}
	if v.image != "" {
		args = append(args, "-initrd", v.image)
	}
	if v.disk != "" {
		// The disk is an NVMe disk, because Debian's cloud kernel has the driver for it built in.
		args = append(args, "-drive", "if=none,id=disk,format=raw,file="+v.disk, "-device", "nvme,drive=disk,serial=disk")
	}
	if v.network {
		args = append(args, "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	cmd := exec.CommandContext(ctx, qemu, args...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began, lost := time.Now(), false
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reports, rest = readVMReports(console, func(line string) {
		if cut != nil && !lost && cut(line) {
			lost = true
			_ = cmd.Process.Kill()
		}
	})
	err = cmd.Wait()
	t.Logf("the machine ran for %v", time.Since(began).Round(100*time.Millisecond))
	if err != nil && !lost {
		t.Errorf("qemu: %v\n%s", err, stderr.Bytes())
	}
	return reports, rest
}

// vmReport is the output and the result of a step.
type vmReport struct {
	output, result string
}

// Lines of the console with these prefixes mark the start and the end of a step's output.
const (
	vmReportBegin = "vm-begin "
	vmReportEnd   = "vm-end "
)

// readVMReports reads the console until the machine stops, and calls seen for each line.
func readVMReports(console io.Reader, seen func(line string)) (reports map[string]vmReport, rest string) {
	reports = map[string]vmReport{}
	var reportOutput, otherOutput strings.Builder
	name := ""
	lines := bufio.NewReader(console)
	for {
		line, err := lines.ReadString('\n')
		line = strings.ReplaceAll(line, "\r", "")
		seen(line)
		if begun, ok := strings.CutPrefix(line, vmReportBegin); ok {
			name = strings.TrimSpace(begun)
			reportOutput.Reset()
		} else if verdict, ok := strings.CutPrefix(line, vmReportEnd); ok {
			reports[name] = vmReport{reportOutput.String(), strings.TrimSpace(verdict)}
			name = ""
		} else if name != "" {
			reportOutput.WriteString(line)
		} else {
			otherOutput.WriteString(line)
		}
		if err != nil {
			if name != "" {
				reports[name] = vmReport{reportOutput.String(), "the machine ended"}
			}
			return reports, otherOutput.String()
		}
	}
}

// buildVMTests builds the test programs for the virtual machine. It leaves out the race detector,
// because the machine is emulated.
func buildVMTests(t *testing.T, packages []string, dir string) (programs []string) {
	args := append([]string{"test", "-c", "-ldflags=-s -w", "-o", dir + "/"}, packages...)
	cmd := exec.Command("go", args...)
	cmd.Dir = systemtest.RepositoryDir()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	for _, pkg := range packages {
		programs = append(programs, filepath.Join(dir, filepath.Base(pkg)+".test"))
	}
	if slices.Contains(packages, vmHostilePackage) {
		programs = append(programs, systemtest.BuildHostileProbe(t, dir))
	}
	return programs
}

// packagesOfSteps returns the package of the init process and the packages whose test programs the steps run.
func packagesOfSteps(steps []vmStep) []string {
	return slices.DeleteFunc(slices.Clone(vmPackages), func(pkg string) bool {
		return pkg != vmPackages[0] && !slices.ContainsFunc(steps, func(s vmStep) bool { return s.argv[0] == "/tests/"+path.Base(pkg)+".test" })
	})
}

func writeVMImage(t *testing.T, m vm, programs []string) {
	f, err := os.Create(m.image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := vmimage.New(f)
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "var/tmp", "run", "mnt", "root", "home", "etc", "usr/bin", "usr/lib", "usr/lib64", "tests", vmPackageDir, path.Join(vmPackageDir, "../commands")} {
		w.WriteDirAndParents(dir)
	}
	for _, name := range []string{"bin", "lib", "lib64"} {
		w.WriteSymlink("usr/"+name, name)
	}
	for _, tool := range slices.Concat(vmTools, vmEngineTools) {
		found, err := exec.LookPath(tool)
		if err != nil {
			t.Fatalf("the machine needs a program of this one: %v", err)
		}
		w.WriteProgramAndLibraries(found, "usr/bin/"+tool)
	}
	for _, program := range programs {
		w.WriteProgramAndLibraries(program, "tests/"+filepath.Base(program))
	}
	w.WriteSymlink("tests/vm.test", "init")
	w.WriteFile("etc/passwd", 0o644, []byte("root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/:/bin/sh\nbin:x:2:2::/:/bin/sh\nsys:x:3:3::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"+
		fmt.Sprintf("somebody:x:%d:%[1]d::/home:/bin/sh\n", vmUserID)))
	w.WriteFile("etc/group", 0o644, []byte("root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\ndisk:x:6:\nshadow:x:42:\nnogroup:x:65534:\n"+fmt.Sprintf("somebody:x:%d:\n", vmUserID)))
	w.WriteFile("etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	w.WriteFile("etc/shadow", 0o600, []byte("root:*:19000:0:99999:7:::\n")) // hostile jobs try to read it
	// The scripts find the configuration of their agents from the root of the repository.
	w.WriteFile(vmRepositoryDir+"/go.mod", 0o644, nil)
	for _, dir := range []string{"testdata", "../commands/testdata", "../hostile/testdata", "../testdata", "../../../../docs/promises"} {
		w.WriteTree(dir, path.Join(vmPackageDir, dir))
	}
	security, err := os.ReadFile("../../../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	w.WriteFile(vmRepositoryDir+"/SECURITY.md", 0o644, security)
	w.WriteKernelModules(m.kernel, vmModuleDir, vmModules...)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
