package qemu

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) {
	sdktest.Main(m, func() { sdk.ServeDriver(&Driver{}) })
}

// powerOff is the end of a boot sector, which turns the machine off by the ACPI registers of
// QEMU's default machine.
var powerOff = []byte{
	0xba, 0x04, 0x06, // mov dx, 0x604: control register
	0xb8, 0x00, 0x20, // mov ax, 0x2000: power off
	0xef, // out dx, ax
	0xf4, // hlt
}

// waitForButton is the start of a boot sector, which writes a byte to the serial port and waits
// until the power button is pressed.
var waitForButton = []byte{
	0xba, 0x02, 0x06, // mov dx, 0x602: enable register
	0xb8, 0x00, 0x01, // mov ax, 0x100: power button
	0xef,             // out dx, ax
	0xba, 0xf8, 0x03, // mov dx, 0x3f8: serial port
	0xb0, '!', // mov al, '!'
	0xee,             // out dx, al
	0xba, 0x00, 0x06, // mov dx, 0x600: status register
	0xed,             // wait: in ax, dx
	0xf6, 0xc4, 0x01, // test ah, 1
	0x74, 0xfa, // jz wait
}

// ignoreButton is a boot sector that writes a byte to the serial port and then does nothing.
var ignoreButton = []byte{
	0xba, 0xf8, 0x03, // mov dx, 0x3f8: serial port
	0xb0, '!', // mov al, '!'
	0xee,       // out dx, al
	0xeb, 0xfe, // jmp to itself
}

// writeImage writes a disk image with a boot sector.
func writeImage(t *testing.T, path string, code ...[]byte) string {
	t.Helper()
	content := make([]byte, 1<<20)
	copy(content, slices.Concat(code...))
	content[510], content[511] = 0x55, 0xaa
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func requireQEMU(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a virtual machine")
	}
	if _, err := findEmulator(defaultEmulator); err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("%v (Debian: qemu-system-x86)", err)
	}
}

func TestContract(t *testing.T) {
	slowtest.SkipLong(t, "starts an emulated machine in each case")
	requireQEMU(t)
	dir := t.TempDir()
	sdktest.Driver(t, sdktest.Plugin{
		Path:   os.Args[0],
		Config: map[string]any{"image_paths": []any{dir}},
		Tasks: sdktest.Tasks{
			LongRunning: map[string]any{"image_path": writeImage(t, filepath.Join(dir, "runs,1.img"), waitForButton, powerOff), "graceful_shutdown": true},
			Succeeds:    map[string]any{"image_path": writeImage(t, filepath.Join(dir, "ends.img"), powerOff)},
			Fails:       map[string]any{"image_path": filepath.Join(dir, "ends.img"), "machine_type": "none-such"},
		},
	})
}

// newStart returns the request to start a task with a config block, in a new directory of an allocation.
func newStart(t *testing.T, body map[string]any) *sdk.StartRequest {
	t.Helper()
	value, diags := block.Decode(taskSchema, body, nil)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	config, err := block.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "qemu-test")
	for _, sub := range []string{"alloc", "task/local", "other/local"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &sdk.StartRequest{TaskConfig: driver.TaskConfig{
		ID: "qemu-test/task/1", AllocID: "qemu-test", Name: "task", AllocDir: dir, DriverConfig: config,
		StdoutPath: os.DevNull, StderrPath: os.DevNull, Resources: &driver.Resources{MemoryMB: 256},
	}}
}

// emulatorArgs returns the arguments of the emulator for a task whose image is local/disk.img.
func emulatorArgs(t *testing.T, c pluginConfig, body map[string]any, change func(*sdk.StartRequest)) (args []string, command process.Command, err error) {
	t.Helper()
	emulators := t.TempDir()
	for _, name := range []string{"x86_64", "riscv64"} {
		if err := os.WriteFile(filepath.Join(emulators, "qemu-system-"+name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", emulators)
	if _, ok := body["image_path"]; !ok {
		body["image_path"] = "local/disk.img"
	}
	start := newStart(t, body)
	writeImage(t, filepath.Join(start.TaskDir(), "local/disk.img"), powerOff)
	if change != nil {
		change(start)
	}
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		t.Fatal(err)
	}
	command, err = c.buildEmulatorCommand(&tc, start)
	if err != nil {
		return nil, command, err
	}
	t.Cleanup(func() { closeFiles(command.ExtraFiles) })
	return append([]string{filepath.Base(command.Path)}, command.Args...), command, nil
}

// TestCommandLine has the command lines of Nomad's driver, except that images of the job, the monitor and the guest agent are
// descriptors, and that a core dump has no memory of the machine.
func TestCommandLine(t *testing.T) {
	const (
		image = "-add-fd fd=3,set=1 -add-fd fd=4,set=1 -drive file=/dev/fdset/1,format=raw"
		begin = "qemu-system-x86_64 -machine type=pc,accel=tcg,dump-guest-core=off -name disk.img -m 256M " + image
	)
	groupPorts := func(s *sdk.StartRequest) {
		s.Resources.Ports = []driver.PortMapping{{Label: "http", Value: 20000, To: 8080, HostIP: "127.0.0.1"}, {Label: "ssh", Value: 20001}}
	}
	for _, test := range []struct {
		name   string
		body   map[string]any
		change func(*sdk.StartRequest)
		want   string
	}{
		{"defaults", map[string]any{}, nil, begin + ",if=ide,id=image0 -nographic"},
		{"options that are empty have their defaults", map[string]any{"emulator": "", "accelerator": "", "machine_type": "", "drive_interface": ""}, nil, begin + ",if=ide,id=image0 -nographic"},
		{"emulator, machine and drive interface", map[string]any{"emulator": "riscv64", "machine_type": "virt", "drive_interface": "virtio"}, nil,
			"qemu-system-riscv64 -machine type=virt,accel=tcg,dump-guest-core=off -name disk.img -m 256M " + image + ",if=virtio,id=image0 -nographic"},
		{"a machine type adds no other options", map[string]any{"machine_type": "pc,dumpdtb=/etc/passwd", "accelerator": "tcg,firmware=/etc/shadow"}, nil,
			"qemu-system-x86_64 -machine type=pc,,dumpdtb=/etc/passwd,accel=tcg,,firmware=/etc/shadow,dump-guest-core=off -name disk.img -m 256M " + image + ",if=ide,id=image0 -nographic"},
		{"kvm", map[string]any{"accelerator": "kvm"}, nil,
			"qemu-system-x86_64 -machine type=pc,accel=kvm,dump-guest-core=off -name disk.img -m 256M " + image + ",if=ide,id=image0 -nographic -enable-kvm"},
		{"kvm with reserved cores", map[string]any{"accelerator": "kvm"}, func(s *sdk.StartRequest) { s.Resources.Linux.CpusetCpus = "0-2,5" },
			"qemu-system-x86_64 -machine type=pc,accel=kvm,dump-guest-core=off -name disk.img -m 256M " + image + ",if=ide,id=image0 -nographic -enable-kvm -smp 4"},
		{"tcg with reserved cores", map[string]any{}, func(s *sdk.StartRequest) { s.Resources.Linux.CpusetCpus = "0" }, begin + ",if=ide,id=image0 -nographic"},
		{"monitor and guest agent before the arguments of the job", map[string]any{"graceful_shutdown": true, "guest_agent": true, "args": []any{"-device", "x"}}, nil,
			begin + ",if=ide,id=image0 -nographic -chardev socket,id=monitor,fd=5,server=on,wait=off -mon chardev=monitor,mode=readline" +
				" -chardev socket,id=qga0,fd=6,server=on,wait=off -device virtio-serial -device virtserialport,chardev=qga0,name=org.qemu.guest_agent.0 -device x"},
		{"arguments of the job", map[string]any{"args": []any{"-name", "x", "-nodefaults", "-nodefaults", "-name", "y"}}, nil, begin + ",if=ide,id=image0 -nographic -name x -nodefaults -nodefaults -name y"},
		{"ports of the task", map[string]any{"port_map": []any{map[string]any{"http": 80, "dns": 53}}, "args": []any{"-nodefaults"}}, func(s *sdk.StartRequest) {
			s.Resources.Networks = []driver.NetworkResource{{IP: "192.0.2.1", DynamicPorts: []driver.NetworkPort{{Label: "http", Value: 28489}}, ReservedPorts: []driver.NetworkPort{{Label: "dns", Value: 25353}}}}
		}, begin + ",if=ide,id=image0 -nographic -nodefaults -netdev user,id=user.0,hostfwd=udp::25353-:53,hostfwd=tcp::25353-:53,hostfwd=udp::28489-:80,hostfwd=tcp::28489-:80 -device virtio-net,netdev=user.0"},
		{"ports of the group", map[string]any{"port_map": []any{map[string]any{"http": 80}, map[string]any{"ssh": 22}}}, groupPorts,
			begin + ",if=ide,id=image0 -nographic -netdev user,id=user.0,hostfwd=udp:127.0.0.1:20000-:80,hostfwd=tcp:127.0.0.1:20000-:80,hostfwd=udp::20001-:22,hostfwd=tcp::20001-:22 -device virtio-net,netdev=user.0"},
		{"ports of the group in its own network", map[string]any{"port_map": []any{map[string]any{"http": 80, "ssh": 22}}}, func(s *sdk.StartRequest) {
			groupPorts(s)
			s.NetworkIsolation = &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: "/run/netns/x"}
		}, begin + ",if=ide,id=image0 -nographic -netdev user,id=user.0,hostfwd=udp::8080-:80,hostfwd=tcp::8080-:80,hostfwd=udp::20001-:22,hostfwd=tcp::20001-:22 -device virtio-net,netdev=user.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			args, command, err := emulatorArgs(t, pluginConfig{ArgsAllowlist: []string{"-device", "-name", "-nodefaults"}}, test.body, test.change)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(args, " "); got != test.want {
				t.Errorf("the command line is\n%s\nwant\n%s", got, test.want)
			}
			if command.MemoryLimitBytes != 512<<20 {
				t.Errorf("the limit of memory is %d MiB, want 512", command.MemoryLimitBytes>>20)
			}
		})
	}
}

func TestArgsWithoutAllowlist(t *testing.T) {
	for _, c := range []pluginConfig{{}, {ArgsAllowlist: []string{}}} {
		if err := c.checkArgsAllowlist([]string{"-drive", "file=/etc/shadow", "/etc/shadow"}); err != nil {
			t.Errorf("with the allow-list %#v, the arguments are rejected: %v", c.ArgsAllowlist, err)
		}
	}
}

func TestMemory(t *testing.T) {
	for _, test := range []struct {
		name      string
		resources *driver.Resources
		machine   int64 // MiB; 0 means an error
		limit     int64 // MiB; 0 means no limit
	}{
		{"a host without resources", nil, 128, 0},
		{"a host that sends none", &driver.Resources{}, 128, 0},
		{"the least", &driver.Resources{MemoryMB: 128}, 128, 384},
		{"the most", &driver.Resources{MemoryMB: 4000000}, 4000000, 4000256},
		{"too little", &driver.Resources{MemoryMB: 127, MemoryMaxMB: 256}, 0, 0},
		{"too much", &driver.Resources{MemoryMB: 4000001}, 0, 0},
		{"memory_max", &driver.Resources{MemoryMB: 256, MemoryMaxMB: 1024}, 256, 1280},
		{"no limit", &driver.Resources{MemoryMB: 256, MemoryMaxMB: driver.NoMemoryLimit}, 256, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			machine, err := machineMemoryMB(test.resources)
			if machine != test.machine || (err != nil) != (test.machine == 0) {
				t.Fatalf("the machine has %d MiB (%v), want %d", machine, err, test.machine)
			}
			if limit := emulatorMemoryLimitBytes(test.resources) >> 20; err == nil && limit != test.limit {
				t.Errorf("the limit is %d MiB, want %d", limit, test.limit)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	policy := pluginConfig{ArgsAllowlist: []string{"-nodefaults", "-name"}, EmulatorsAllowlist: []string{"x86_64", "mips"}}
	withPort := func(s *sdk.StartRequest) {
		s.Resources.Ports = []driver.PortMapping{{Label: "http", Value: 20000, HostIP: "::1"}}
	}
	for _, test := range []struct {
		name   string
		config pluginConfig
		body   map[string]any
		change func(*sdk.StartRequest)
		want   string
	}{
		{"an emulator that is not allowed", policy, map[string]any{"emulator": "riscv64"}, nil, "'riscv64' is not an allowed emulator: emulators_allowlist of the plugin has x86_64, mips"},
		{"an emulator that is not installed", policy, map[string]any{"emulator": "mips"}, nil, "the program qemu-system-mips is in no directory of the agent's PATH ("},
		{"a path as an emulator", pluginConfig{}, map[string]any{"emulator": "x/../../bin/sh"}, nil, `"x/../../bin/sh" is not the name of an emulator`},
		{"an option that is not allowed", policy, map[string]any{"args": []any{"-device", "x"}}, nil, `"-device" is not in args_allowlist`},
		{"an option as the value of another", policy, map[string]any{"args": []any{"-name", "-device"}}, nil, `"-device" is not in args_allowlist`},
		{"a disk image as the first argument", policy, map[string]any{"args": []any{"/etc/shadow"}}, nil, `"/etc/shadow" in args belongs to no option: QEMU would use it as a disk image`},
		{"a disk image after an option without a value", policy, map[string]any{"args": []any{"-nodefaults", "/etc/shadow"}}, nil, `"/etc/shadow" in args belongs to no option`},
		{"a disk image after the value of an option", policy, map[string]any{"args": []any{"-name", "x", "/etc/shadow"}}, nil, `"/etc/shadow" in args belongs to no option`},
		{"an option with two dashes", policy, map[string]any{"args": []any{"--nodefaults"}}, nil, `"--nodefaults" is not in args_allowlist`},
		{"an option with its value", policy, map[string]any{"args": []any{"-name x"}}, nil, `"-name x" is not in args_allowlist`},
		{"a drive interface that QEMU lacks", policy, map[string]any{"drive_interface": "nvme"}, nil, `unsupported drive_interface "nvme": it must be one of ide, scsi,`},
		{"a drive interface in upper case", policy, map[string]any{"drive_interface": "IDE"}, nil, `unsupported drive_interface "IDE"`},
		{"too little memory", policy, map[string]any{}, func(s *sdk.StartRequest) { s.Resources.MemoryMB = 127 }, "QEMU memory assignment out of bounds: memory is 127 MB"},
		{"a port that the job does not have", policy, map[string]any{"port_map": []any{map[string]any{"nosuch": 80}}}, withPort, `port_map: unknown port label "nosuch": the task has the ports ["http"]`},
		{"a port that is no port", policy, map[string]any{"port_map": []any{map[string]any{"http": 70000}}}, withPort, `port_map: "http": 70000 is not a port`},
		{"a port of IPv6", policy, map[string]any{"port_map": []any{map[string]any{"http": 80}}}, withPort, `port_map: "http": QEMU forwards ports of IPv4 addresses only`},
		{"no image", policy, map[string]any{"image_path": ""}, nil, "image_path must be set"},
		{"an image that does not exist", policy, map[string]any{"image_path": "local/nosuch.img"}, nil, "no such file or directory"},
		{"an image that is a directory", policy, map[string]any{"image_path": "local"}, nil, "is a directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			args, _, err := emulatorArgs(t, test.config, test.body, test.change)
			if err == nil {
				t.Errorf("the command line is %q, want an error", args)
			} else if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %q, want %q", err, test.want)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	for want, c := range map[string]pluginConfig{
		`image_paths: "images" is not an absolute path`:                                                             {ImagePaths: []string{"images"}},
		`emulators_allowlist: "../x86_64" is not the name of an emulator; x86_64 is the name of qemu-system-x86_64`: {EmulatorsAllowlist: []string{"../x86_64"}},
	} {
		if err := c.validate(); err == nil || err.Error() != want {
			t.Errorf("the error is %v, want %s", err, want)
		}
	}
}

func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if got := new(Driver).Fingerprint(t.Context()); got.Health != driver.HealthUndetected || !strings.HasPrefix(got.HealthDescription, "no QEMU emulator: the program qemu-system-x86_64 is in no directory") {
		t.Errorf("without an emulator, the fingerprint is %+v", got)
	}
	for _, name := range []string{"x86_64", "mips", "arm"} {
		if err := os.WriteFile(filepath.Join(dir, "qemu-system-"+name), []byte("#!/bin/sh\necho 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)'\necho Copyright\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		allowed   []string
		emulators string // empty means that the driver is not detected
	}{
		{nil, "x86_64"},
		{[]string{"x86_64", "nosuch", "arm"}, "arm,x86_64"},
		{[]string{"nosuch"}, ""},
	} {
		d := &Driver{config: pluginConfig{EmulatorsAllowlist: test.allowed}}
		got := d.Fingerprint(t.Context())
		switch {
		case (got.Health == driver.HealthHealthy) != (test.emulators != ""):
			t.Errorf("with the allowed emulators %q, the fingerprint is %+v", test.allowed, got)
		case test.emulators == "":
		case got.Attributes["driver.qemu"].Value != true || got.Attributes["driver.qemu.version"].Value != "7.2.22" || got.Attributes["driver.qemu.emulators"].Value != test.emulators:
			t.Errorf("with the allowed emulators %q, the attributes are %+v, want the emulators %s", test.allowed, got.Attributes, test.emulators)
		}
	}
}

// startMachine starts a machine with a boot sector, and waits until the boot sector runs.
func startMachine(t *testing.T, user string, graceful bool, code ...[]byte) (*task, *sdk.StartRequest) {
	t.Helper()
	requireQEMU(t)
	start := newStart(t, map[string]any{"image_path": "local/disk.img", "graceful_shutdown": graceful})
	writeImage(t, filepath.Join(start.TaskDir(), "local/disk.img"), code...)
	start.User = user
	if err := os.Chmod(filepath.Dir(filepath.Dir(start.AllocDir)), 0o755); err != nil { // the user enters the task's directory
		t.Fatal(err)
	}
	start.StdoutPath = filepath.Join(start.AllocDir, "stdout")
	if err := unix.Mkfifo(start.StdoutPath, 0o600); err != nil {
		t.Fatal(err)
	}
	serial, err := os.OpenFile(start.StdoutPath, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { serial.Close() })
	m, err := new(Driver).Start(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := m.Kill(ctx); err != nil {
			t.Error(err)
		}
		_, _ = m.Wait(ctx)
		if err := m.Destroy(ctx); err != nil {
			t.Error(err)
		}
	})
	serial.SetReadDeadline(time.Now().Add(time.Minute))
	for seen := make([]byte, 1); seen[0] != '!'; {
		if _, err := io.ReadFull(serial, seen); err != nil {
			t.Fatalf("the boot sector writes nothing: %v", err)
		}
	}
	return m, start
}

func TestStop(t *testing.T) {
	for _, test := range []struct {
		name     string
		graceful bool
		code     [][]byte
		signal   string
		timeout  time.Duration
		want     driver.ExitResult
		least    time.Duration // how long the stop takes at least
	}{
		{"the power button", true, [][]byte{waitForButton, powerOff}, "SIGUSR1", time.Minute, driver.ExitResult{}, 0},
		{"a machine that ignores the power button", true, [][]byte{ignoreButton}, "", 2 * time.Second, driver.ExitResult{}, 1500 * time.Millisecond},
		{"the signal, without graceful_shutdown", false, [][]byte{ignoreButton}, "", time.Minute, driver.ExitResult{}, 0},
		{"a signal that ends the emulator", false, [][]byte{ignoreButton}, "SIGQUIT", time.Minute, driver.ExitResult{Signal: int(syscall.SIGQUIT)}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _ := startMachine(t, "", test.graceful, test.code...)
			began := time.Now()
			if err := m.Stop(t.Context(), sdk.StopRequest{Signal: test.signal, Timeout: test.timeout}); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			if result, err := m.Wait(t.Context()); err != nil || result.Signal != test.want.Signal || result.Signal == 0 && result.ExitCode != 0 {
				t.Errorf("the exit result is %+v (%v), want %+v", result, err, test.want)
			}
			if took < test.least || took > 30*time.Second {
				t.Errorf("the stop took %v, want at least %v", took, test.least)
			}
		})
	}
}

// A process of the driver that has recovered the machine finds its monitor.
func TestRecoveredMachineIsPoweredDown(t *testing.T) {
	m, start := startMachine(t, "", true, waitForButton, powerOff)
	p, err := process.RecoverWithoutExec(t.Context(), start, m.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	recovered := newTask(p, start, m.State().(taskState).HasMonitor)
	if err := recovered.Stop(t.Context(), sdk.StopRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if result, err := m.Wait(t.Context()); err != nil || result != (driver.ExitResult{}) {
		t.Errorf("the exit result is %+v (%v), want exit code 0", result, err)
	}
}

// The emulator has the user of the task, who can open neither the image nor the socket of the monitor.
func TestUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, which starts processes of other users")
	}
	requireQEMU(t)
	m, _ := startMachine(t, "nobody", true, waitForButton, powerOff)
	const nobodyUID = 65534
	info, err := os.Stat(fmt.Sprintf("/proc/%d", m.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != nobodyUID {
		t.Errorf("the emulator has the uid %d, want %d", uid, nobodyUID)
	}
	if err := m.Stop(t.Context(), sdk.StopRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if result, err := m.Wait(t.Context()); err != nil || result != (driver.ExitResult{}) {
		t.Errorf("the exit result is %+v (%v), want exit code 0", result, err)
	}
}

// Without its socket, the emulator gets the signal.
func TestStopWithoutMonitor(t *testing.T) {
	m, start := startMachine(t, "", true, ignoreButton)
	if err := os.Remove(filepath.Join(start.TaskDir(), monitorSocket)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := m.Stop(t.Context(), sdk.StopRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if result, err := m.Wait(t.Context()); err != nil || result != (driver.ExitResult{}) || time.Since(began) > 30*time.Second {
		t.Errorf("the exit result is %+v (%v) after %v, want exit code 0 at once", result, err, time.Since(began))
	}
}

// A stop ends although the emulator reads nothing from its monitor.
func TestStopOfStoppedEmulator(t *testing.T) {
	m, _ := startMachine(t, "", true, waitForButton, powerOff)
	if err := m.Signal(t.Context(), "SIGSTOP"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := m.Stop(t.Context(), sdk.StopRequest{Timeout: time.Second}); err != nil {
		t.Fatal(err)
	}
	if result, err := m.Wait(t.Context()); err != nil || result.Signal != int(syscall.SIGKILL) || time.Since(began) > 30*time.Second {
		t.Errorf("the exit result is %+v (%v) after %v, want signal 9 after a second", result, err, time.Since(began))
	}
}

// The monitor is reachable where the path of the task's directory is longer than the address of a socket, and only for its owner.
func TestSocketOfLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second start replaces the socket of the first one
		f, err := listenSocketInDir(dir, monitorSocket)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		listener, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		conn, err := dialSocketInDir(t.Context(), dir, monitorSocket)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if info, err := os.Stat(filepath.Join(dir, monitorSocket)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v (%v), want 0600", info.Mode(), err)
	}
}
