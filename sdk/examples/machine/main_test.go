package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

func TestMain(m *testing.M) { sdktest.Main(m, main) }

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
	0xb0, 'r', // mov al, 'r'
	0xee,             // out dx, al
	0xba, 0x00, 0x06, // mov dx, 0x600: status register
	0xed,             // wait: in ax, dx
	0xf6, 0xc4, 0x01, // test ah, 1
	0x74, 0xfa, // jz wait
}

// bootImage writes a disk image with a boot sector.
func bootImage(t *testing.T, code ...[]byte) string {
	t.Helper()
	image := make([]byte, 1<<20)
	copy(image, slices.Concat(code...))
	image[510], image[511] = 0x55, 0xaa
	path := filepath.Join(t.TempDir(), "disk,1.img")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func requireQEMU(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a virtual machine")
	}
	if _, err := os.Stat(qemuPath); err != nil {
		if os.Getenv("NOMAD_LITE_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("there is no " + qemuPath + " (Debian: qemu-system-x86)")
	}
}

func TestContract(t *testing.T) {
	requireQEMU(t)
	sdktest.Driver(t, sdktest.Plugin{
		Path: os.Args[0],
		Tasks: sdktest.Tasks{
			LongRunning: map[string]any{"image": bootImage(t, waitForButton, powerOff)},
			Succeeds:    map[string]any{"image": bootImage(t, powerOff)},
		},
	})
}

// startMachine starts a machine with the tap device of this name, and waits until its boot sector runs.
func startMachine(t *testing.T, tap cty.Value) *machine {
	t.Helper()
	requireQEMU(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "task", "local"), 0o755); err != nil {
		t.Fatal(err)
	}
	stdout := filepath.Join(dir, "stdout")
	if err := unix.Mkfifo(stdout, 0o600); err != nil {
		t.Fatal(err)
	}
	serial, err := os.OpenFile(stdout, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer serial.Close()
	config, err := block.Marshal(cty.ObjectVal(map[string]cty.Value{"image": cty.StringVal(bootImage(t, waitForButton, powerOff)), "tap": tap}))
	if err != nil {
		t.Fatal(err)
	}
	m, err := new(machineDriver).Start(t.Context(), &sdk.StartRequest{TaskConfig: driver.TaskConfig{
		ID: "qemu-test/task", Name: "task", AllocDir: dir, DriverConfig: config, Resources: new(driver.Resources), Env: map[string]string{}, StdoutPath: stdout,
	}})
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
	if _, err := serial.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the boot sector writes nothing: %v", err)
	}
	return m
}

func TestStopPressesThePowerButton(t *testing.T) {
	m := startMachine(t, cty.NullVal(cty.String))
	if err := m.Stop(t.Context(), sdk.StopRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if result, err := m.Wait(t.Context()); err != nil || result != (driver.ExitResult{}) {
		t.Errorf("exit result %+v, %v, want exit code 0", result, err)
	}
}

func TestRecoveredMachineIsPoweredDown(t *testing.T) {
	m := startMachine(t, cty.NullVal(cty.String))
	p, err := process.RecoverWithoutExec(t.Context(), &sdk.StartRequest{}, m.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	recovered := &machine{p, m.taskDir}
	if err := recovered.Stop(t.Context(), sdk.StopRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if result, err := m.Wait(t.Context()); err != nil || result != (driver.ExitResult{}) {
		t.Errorf("exit result %+v, %v, want exit code 0", result, err)
	}
}

// The network of a machine is a tap device, which exists while QEMU has its descriptor.
func TestTap(t *testing.T) {
	const name = "qemu-test"
	if tap, err := openOrCreateTap(name); err != nil {
		t.Skip("this machine has no tap devices: ", err)
	} else {
		tap.Close()
	}
	m := startMachine(t, cty.StringVal(name))
	if _, err := net.InterfaceByName(name); err != nil {
		t.Errorf("while the machine runs: %v", err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := net.InterfaceByName(name); err == nil {
		t.Error("the tap device outlives the machine")
	}
}
