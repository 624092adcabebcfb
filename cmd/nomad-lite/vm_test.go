package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// vmVariable asks for the test that boots a machine; CI sets it.
const vmVariable = "NOMAD_LITE_VM"

// vmGuest is its value in the machine: the kernel hands it to its first process.
const vmGuest = "guest"

// vmPackages are those whose tests also run in the machine.
var vmPackages = []string{
	"./cmd/nomad-lite",
	"./sdk/process",
	"./builtin/rawexec",
	"./plugins/keeper",
	"./runtime/agent",
	"./runtime/logs",
}

// vmTools are the programs of this machine that tests in the other one use.
var vmTools = []string{
	"sh", "cat", "cut", "env", "grep", "head", "id", "ls", "mkdir", "mv", "ps", "rm", "sed", "setsid", "sleep", "stat", "stty",
	"tail", "tee", "timeout", "touch", "tr", "true", "wc",
}

// TestVM runs nomad-lite, and the tests of what touches processes, in a machine
// of its own with nothing but cgroups version 2: as root, and as somebody who
// may make cgroups or may not. Nothing may be left there after any step.
//
// The machine is emulated, so that this works where no other can be started. Its
// file system is what the archive holds; its first process is this program.
func TestVM(t *testing.T) {
	if testing.Short() || os.Getenv(vmVariable) == "" {
		t.Skipf("boots a virtual machine, for a minute; %s=1 runs it", vmVariable)
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("knows how to boot amd64 only")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal("there is no qemu-system-x86_64 (Debian: apt-get install qemu-system-x86)")
	}
	kernel := vmKernel(t)

	dir := t.TempDir()
	began := time.Now()
	image := filepath.Join(dir, "initramfs")
	writeVMImage(t, image, buildVMTests(t, dir))
	t.Logf("image made in %v", time.Since(began).Round(100*time.Millisecond))

	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	// A processor without AVX is quicker to emulate by a quarter.
	// The machine "microvm" is ready sooner, but has no timer that a kernel could
	// calibrate another one by: on a busy host it often hung.
	cmd := exec.CommandContext(ctx, qemu,
		"-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", kernel, "-initrd", image,
		"-append", "console=ttyS0 quiet panic=-1 reboot=t mitigations=off tsc=reliable "+vmVariable+"="+vmGuest)
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began = time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reports, rest := readVMReports(console)
	err = cmd.Wait()
	t.Logf("the machine ran for %v", time.Since(began).Round(100*time.Millisecond))
	if err != nil {
		t.Errorf("qemu: %v\n%s", err, stderr.Bytes())
	}
	for _, step := range vmSteps {
		t.Run(step.name, func(t *testing.T) {
			report, ok := reports[step.name]
			switch {
			case !ok:
				t.Fatal("the machine did not get that far")
			case !strings.HasPrefix(report.verdict, "ok"):
				t.Errorf("%s\n%s", report.verdict, report.output)
			case testing.Verbose():
				t.Logf("%s\n%s", report.verdict, report.output)
			}
		})
	}
	if t.Failed() {
		t.Logf("what else the machine wrote:\n%s", rest)
	}
}

// vmReport is what a step has written, and how it ended.
type vmReport struct {
	output, verdict string
}

// The lines of the console that tell a step's beginning and end from its output.
const (
	vmBegin = "vm-begin "
	vmEnd   = "vm-end "
)

// readVMReports reads the console to its end.
func readVMReports(console io.Reader) (reports map[string]vmReport, rest string) {
	reports = map[string]vmReport{}
	var output, other strings.Builder
	name := ""
	lines := bufio.NewReader(console)
	for {
		line, err := lines.ReadString('\n')
		line = strings.ReplaceAll(line, "\r", "")
		if begun, ok := strings.CutPrefix(line, vmBegin); ok {
			name = strings.TrimSpace(begun)
			output.Reset()
		} else if verdict, ok := strings.CutPrefix(line, vmEnd); ok {
			reports[name] = vmReport{output.String(), strings.TrimSpace(verdict)}
			name = ""
		} else if name != "" {
			output.WriteString(line)
		} else {
			other.WriteString(line)
		}
		if err != nil {
			if name != "" {
				reports[name] = vmReport{output.String(), "the machine ended"}
			}
			return reports, other.String()
		}
	}
}

// vmKernel finds a kernel that has what it takes built in: Debian's for clouds has.
func vmKernel(t *testing.T) string {
	for _, pattern := range []string{"/boot/vmlinuz-*-cloud-amd64", "/boot/vmlinuz-*"} {
		found, _ := filepath.Glob(pattern)
		for _, kernel := range found {
			if f, err := os.Open(kernel); err == nil {
				f.Close()
				return kernel
			}
		}
	}
	t.Fatal("there is no kernel to boot in /boot (Debian: apt-get install linux-image-cloud-amd64)")
	return ""
}

// buildVMTests builds the test programs, without the race detector: the machine
// is emulated.
func buildVMTests(t *testing.T, dir string) (programs []string) {
	args := append([]string{"test", "-c", "-ldflags=-s -w", "-o", dir + "/"}, vmPackages...)
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	for _, pkg := range vmPackages {
		programs = append(programs, filepath.Join(dir, filepath.Base(pkg)+".test"))
	}
	return programs
}

func writeVMImage(t *testing.T, path string, programs []string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := newImage(f)
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run", "root", "home", "etc", "usr/bin", "usr/lib", "usr/lib64", "tests", vmDirectory} {
		w.mkdir(dir)
	}
	for _, name := range []string{"bin", "lib", "lib64"} {
		w.symlink("usr/"+name, name)
	}
	for _, tool := range vmTools {
		found, err := exec.LookPath(tool)
		if err != nil {
			t.Fatalf("the machine needs a program of this one: %v", err)
		}
		w.program(found, "usr/bin/"+tool)
	}
	for _, program := range programs {
		w.program(program, "tests/"+filepath.Base(program))
	}
	w.symlink("tests/nomad-lite.test", "init")
	w.file("etc/passwd", 0o644, []byte("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"+
		fmt.Sprintf("somebody:x:%d:%[1]d::/home:/bin/sh\n", vmUser)))
	w.file("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"+fmt.Sprintf("somebody:x:%d:\n", vmUser)))
	w.tree("testdata", vmDirectory+"/testdata")
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
}
