// Command machine is a task driver whose tasks are virtual machines of qemu-system-x86_64. It
// shows a driver around a program with a control socket: the task embeds a process.ProcessWithoutExec,
// which offers no exec, its Stop presses the power button of the machine by QMP, and QEMU
// inherits the listening QMP socket and the tap device as descriptors. For users there is the
// builtin driver qemu, which has the options and the checks that this example lacks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

func main() { sdk.ServeDriver(&machineDriver{}) }

const (
	qemuPath = "/usr/bin/qemu-system-x86_64"

	// qemuOverheadBytes is the memory that QEMU needs in addition to the memory of the machine.
	qemuOverheadBytes  = 256 << 20
	defaultMemoryBytes = 128 << 20 // memory of a machine whose task has no memory limit

	qmpSocket = "qmp.sock" // file name, in the task's directory

	// The descriptors that QEMU inherits, in the order of the ExtraFiles of its command.
	qmpFD = 3
	tapFD = 4
)

type machineDriver struct{}

var (
	_ sdk.Driver[*machine]    = (*machineDriver)(nil)
	_ sdk.Recoverer[*machine] = (*machineDriver)(nil)
	_ sdk.Adopter[*machine]   = (*machineDriver)(nil)
	_ sdk.Fingerprinter       = (*machineDriver)(nil)
	_ sdk.OrphanKiller        = (*machineDriver)(nil)
	_ sdk.Stopper             = (*machine)(nil)
)

type taskConfig struct {
	ImagePath string `codec:"image"`
	TapDevice string `codec:"tap"`
}

var taskSchema = hclspec.Object(map[string]*hclspec.Spec{
	"image": hclspec.Attr("image", "string", true), // raw disk image, an absolute path
	"tap":   hclspec.Attr("tap", "string", false),  // tap device for the network of the machine; made if it does not exist
})

func (*machineDriver) Info() sdk.DriverInfo {
	return sdk.DriverInfo{
		Name:         "machine",
		Version:      "0.1.0",
		TaskSchema:   taskSchema,
		Capabilities: driver.Capabilities{FSIsolation: driver.FSIsolationImage},
	}
}

// Fingerprint reports whether QEMU is installed.
func (*machineDriver) Fingerprint(context.Context) driver.Fingerprint {
	if _, err := os.Stat(qemuPath); err != nil {
		return driver.Fingerprint{Health: driver.HealthUndetected, HealthDescription: err.Error()}
	}
	return driver.Fingerprint{Health: driver.HealthHealthy, Attributes: map[string]driver.Attribute{"driver.machine": {Value: true}}}
}

func (*machineDriver) Start(ctx context.Context, start *sdk.StartRequest) (*machine, error) {
	var config taskConfig
	if err := start.DecodeConfig(&config); err != nil {
		return nil, err
	}
	qmp, err := listenQMP(start.TaskDir())
	if err != nil {
		return nil, sdk.Recoverable(err)
	}
	defer qmp.Close()
	memory := int64(defaultMemoryBytes)
	if start.Resources.Linux.MemoryLimitBytes > 0 {
		memory = start.Resources.Linux.MemoryLimitBytes
	}
	command := process.Command{
		Path: qemuPath,
		Args: []string{
			"-nodefaults", "-display", "none", "-serial", "stdio",
			"-m", strconv.FormatInt(memory>>20, 10) + "M",
			"-drive", "format=raw,file.driver=file,file.filename=" + escapeOption(config.ImagePath),
			"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=off", qmpFD),
			"-mon", "chardev=qmp,mode=control",
		},
		ExtraFiles:       []*os.File{qmp},
		MemoryLimitBytes: memory + qemuOverheadBytes,
		Rlimits:          map[string]process.Rlimit{"core": {}}, // a core dump would have the memory of the machine
	}
	if config.TapDevice != "" {
		tap, err := openOrCreateTap(config.TapDevice)
		if err != nil {
			return nil, err
		}
		defer tap.Close()
		command.ExtraFiles = append(command.ExtraFiles, tap)
		command.Args = append(command.Args, "-netdev", fmt.Sprintf("tap,id=net0,fd=%d", tapFD), "-device", "virtio-net-pci,netdev=net0,romfile=")
	}
	p, err := process.StartWithoutExec(ctx, start, command)
	if err != nil {
		return nil, err
	}
	return &machine{p, start.TaskDir()}, nil
}

func (*machineDriver) Recover(ctx context.Context, start *sdk.StartRequest) (*machine, error) {
	var state process.State
	if err := start.DecodeState(&state); err != nil {
		return nil, err
	}
	p, err := process.RecoverWithoutExec(ctx, start, state)
	if err != nil {
		return nil, err
	}
	return &machine{p, start.TaskDir()}, nil
}

func (*machineDriver) Adopt(ctx context.Context, start *sdk.StartRequest) (*machine, error) {
	p, err := process.AdoptWithoutExec(ctx, start)
	if err != nil {
		return nil, err
	}
	return &machine{p, start.TaskDir()}, nil
}

func (*machineDriver) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	return process.Sweep(ctx, req)
}

// machine is a running virtual machine.
type machine struct {
	*process.ProcessWithoutExec
	taskDir string
}

// Stop presses the power button, and kills QEMU if the machine is not off after the timeout.
func (m *machine) Stop(ctx context.Context, req sdk.StopRequest) error {
	return m.StopWith(ctx, req.Timeout, m.pressPowerButtonUntilOff)
}

func (m *machine) pressPowerButtonUntilOff(ctx context.Context) error {
	dir, err := os.Open(m.taskDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", qmpSocketPath(dir))
	if err != nil {
		return fmt.Errorf("connect to QMP: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	requests, answers := json.NewEncoder(conn), json.NewDecoder(conn)
	command := "qmp_capabilities"
	for {
		err := requests.Encode(map[string]string{"execute": command})
		if err == nil {
			err = readQMPResponse(answers)
		}
		switch {
		case ctx.Err() != nil, command == "system_powerdown" && isConnectionClosedError(err):
			return nil // the machine is off, or the timeout of Stop has passed
		case err != nil:
			return fmt.Errorf("QMP command %s: %w", command, err)
		}
		// A machine whose operating system has not started ignores the button, so the loop presses it again.
		if command == "system_powerdown" {
			select {
			case <-time.After(powerButtonInterval):
			case <-ctx.Done():
				return nil
			}
		}
		command = "system_powerdown"
	}
}

// powerButtonInterval is the time between two presses of the power button.
const powerButtonInterval = 300 * time.Millisecond

// isConnectionClosedError reports whether an error of the QMP connection means that QEMU has exited.
func isConnectionClosedError(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF)
}

// readQMPResponse reads the response to a command, and returns its error. It skips the greeting of QMP and events.
func readQMPResponse(answers *json.Decoder) error {
	for {
		var answer struct {
			Return *struct{} `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return fmt.Errorf("QEMU: %s", answer.Error.Desc)
		}
		if answer.Return != nil {
			return nil
		}
	}
}

// qmpSocketPath returns a path of the QMP socket through the descriptor of the open task directory, because the
// path of the directory itself can be too long for the address of a unix socket.
func qmpSocketPath(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), qmpSocket)
}

// listenQMP returns a listening QMP socket, which QEMU inherits. The socket file stays in the task's directory, so
// that a later process of the driver can connect to QEMU.
func listenQMP(taskDir string) (*os.File, error) {
	dir, err := os.Open(taskDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := qmpSocketPath(dir)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove the QMP socket of an earlier start: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for QMP: %w", err)
	}
	defer listener.Close()
	listener.SetUnlinkOnClose(false)
	return listener.File()
}

func openOrCreateTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open tap device %q: /dev/net/tun: %w", name, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open tap device %q: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// escapeOption escapes a value for an option of QEMU: a comma would end the value.
func escapeOption(value string) string { return strings.ReplaceAll(value, ",", ",,") }
