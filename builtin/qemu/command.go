package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
	"github.com/nomad-lite/nomad-lite/sdk/process"
)

const (
	defaultEmulator       = "x86_64"
	defaultAccelerator    = "tcg"
	defaultMachineType    = "pc"
	defaultDriveInterface = "ide"

	kvm = "kvm"
)

// driveInterfaces are the values of drive_interface.
var driveInterfaces = []string{"ide", "scsi", "sd", "mtd", "floppy", "pflash", "virtio", "none"}

// Limits of the memory of a machine, in MiB.
const (
	minMemoryMB = 128
	maxMemoryMB = 4000000
)

// emulatorMemory is the part of the task's memory limit for the emulator itself, in addition to the
// memory of the virtual machine: for its devices, and for the code that TCG translates.
const emulatorMemory = 256 << 20

// firstExtraFD is the file descriptor that the first extra file of a command has in its process.
const firstExtraFD = 3

// buildEmulatorCommand returns the command of the emulator. The caller closes its extra files.
func (c *pluginConfig) buildEmulatorCommand(tc *taskConfig, start *sdk.StartRequest) (command process.Command, err error) {
	defer func() {
		if err != nil {
			closeFiles(command.ExtraFiles)
		}
	}()
	emulator := cmp.Or(tc.Emulator, defaultEmulator)
	if len(c.EmulatorsAllowlist) > 0 && !slices.Contains(c.EmulatorsAllowlist, emulator) {
		return command, fmt.Errorf("'%s' is not an allowed emulator: emulators_allowlist of the plugin has %s", emulator, strings.Join(c.EmulatorsAllowlist, ", "))
	}
	if err := c.checkArgsAllowlist(tc.Args); err != nil {
		return command, err
	}
	drive := cmp.Or(tc.DriveInterface, defaultDriveInterface)
	if !slices.Contains(driveInterfaces, drive) {
		return command, fmt.Errorf("unsupported drive_interface %q: it must be one of %s", drive, strings.Join(driveInterfaces, ", "))
	}
	memoryMB, err := machineMemoryMB(start.Resources)
	if err != nil {
		return command, err
	}
	forwards, err := portForwards(tc.PortMap, start)
	if err != nil {
		return command, err
	}
	if command.Path, err = findEmulator(emulator); err != nil {
		return command, err
	}
	image, err := c.resolveAndOpenDiskImage(tc.ImagePath, start)
	if err != nil {
		return command, err
	}
	imageFDs := addExtraFiles(&command, image.openFiles...)

	accelerator := cmp.Or(tc.Accelerator, defaultAccelerator)
	command.Args = []string{
		// Without dump-guest-core=off, a core dump of the emulator would have the memory of the machine.
		"-machine", "type=" + escapeOptionValue(cmp.Or(tc.MachineType, defaultMachineType)) + ",accel=" + escapeOptionValue(accelerator) + ",dump-guest-core=off",
		"-name", escapeOptionValue(filepath.Base(tc.ImagePath)),
		"-m", strconv.FormatInt(memoryMB, 10) + "M",
	}
	for _, fd := range imageFDs {
		command.Args = append(command.Args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", fd, imageFDSet))
	}
	command.Args = append(command.Args, "-drive", image.driveOptions()+",if="+drive+",id=image0", "-nographic")
	if accelerator == kvm {
		command.Args = append(command.Args, "-enable-kvm")
		if cores := reservedCoreCount(start.Resources); cores > 0 {
			command.Args = append(command.Args, "-smp", strconv.Itoa(cores))
		}
	}
	if tc.GracefulShutdown {
		socket, err := listenSocketInDir(start.TaskDir(), monitorSocket)
		if err != nil {
			return command, sdk.Recoverable(err)
		}
		command.Args = append(command.Args, "-chardev", socketChardev("monitor", addExtraFiles(&command, socket)[0]), "-mon", "chardev=monitor,mode=readline")
	}
	if tc.GuestAgent {
		socket, err := listenSocketInDir(start.TaskDir(), guestAgentSocket)
		if err != nil {
			return command, sdk.Recoverable(err)
		}
		command.Args = append(command.Args, "-chardev", socketChardev("qga0", addExtraFiles(&command, socket)[0]),
			"-device", "virtio-serial", "-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0")
	}
	command.Args = append(command.Args, tc.Args...)
	if len(forwards) > 0 {
		command.Args = append(command.Args, "-netdev", "user,id=user.0,"+strings.Join(forwards, ","), "-device", "virtio-net,netdev=user.0")
	}
	command.MemoryLimitBytes = emulatorMemoryLimitBytes(start.Resources)
	return command, nil
}

// addExtraFiles adds files to the extra files of a command, and returns their descriptors.
func addExtraFiles(command *process.Command, files ...*os.File) (fds []int) {
	for _, f := range files {
		fds = append(fds, firstExtraFD+len(command.ExtraFiles))
		command.ExtraFiles = append(command.ExtraFiles, f)
	}
	return fds
}

func socketChardev(id string, fd int) string {
	return fmt.Sprintf("socket,id=%s,fd=%d,server=on,wait=off", id, fd)
}

// escapeOptionValue escapes a value of QEMU's option syntax, in which a comma ends the value.
// Without the escape, a value could smuggle in other options, which args_allowlist denies.
func escapeOptionValue(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// checkArgsAllowlist checks that the options among the arguments are in args_allowlist. QEMU uses an argument that is neither an option nor the
// value of one as the path of a disk image, so such an argument is rejected.
func (c *pluginConfig) checkArgsAllowlist(args []string) error {
	if len(c.ArgsAllowlist) == 0 {
		return nil
	}
	valueFollows := false
	for _, arg := range args {
		switch {
		case !strings.HasPrefix(arg, "-") && !valueFollows:
			return fmt.Errorf("%q in args belongs to no option: QEMU would use it as a disk image, which args_allowlist of the plugin does not allow", arg)
		case !strings.HasPrefix(arg, "-"):
			valueFollows = false
		case !slices.Contains(c.ArgsAllowlist, arg):
			return fmt.Errorf("%q is not in args_allowlist of the plugin, which has %s", arg, strings.Join(c.ArgsAllowlist, ", "))
		default:
			valueFollows = !slices.Contains(optionsWithoutValue, strings.TrimLeft(arg, "-"))
		}
	}
	return nil
}

// optionsWithoutValue are the options of QEMU that take no value.
var optionsWithoutValue = []string{
	"S", "audio-help", "curses", "daemonize", "enable-kvm", "enable-sync-profile", "full-screen", "h", "help", "mem-prealloc", "no-acpi", "no-fd-bootchk",
	"no-hpet", "no-kvm", "no-quit", "no-reboot", "no-shutdown", "no-user-config", "nodefaults", "nodefconfig", "nographic", "old-param", "only-migratable", "portrait",
	"preconfig", "s", "semihosting", "singlestep", "snapshot", "usb", "version", "win2k-hack", "xen-attach", "xen-domid-restrict",
}

// machineMemoryMB returns the memory of the machine in MiB.
func machineMemoryMB(r *driver.Resources) (int64, error) {
	if r == nil || r.MemoryMB == 0 {
		return minMemoryMB, nil // the host has sent no memory limit
	}
	if r.MemoryMB < minMemoryMB || r.MemoryMB > maxMemoryMB {
		return 0, fmt.Errorf("QEMU memory assignment out of bounds: memory is %d MB, and must be from %d to %d", r.MemoryMB, minMemoryMB, maxMemoryMB)
	}
	return r.MemoryMB, nil
}

// emulatorMemoryLimitBytes returns the limit of the emulator's memory in bytes; 0 means no limit.
func emulatorMemoryLimitBytes(r *driver.Resources) int64 {
	if r == nil || r.MemoryMB == 0 || r.MemoryMaxMB == driver.NoMemoryLimit {
		return 0
	}
	return max(r.MemoryMB, r.MemoryMaxMB)<<20 + emulatorMemory
}

// reservedCoreCount returns the number of cores that the task has reserved, from a list such as
// "0-2,5".
func reservedCoreCount(r *driver.Resources) (count int) {
	if r == nil || r.Linux.CpusetCpus == "" {
		return 0
	}
	for _, part := range strings.Split(r.Linux.CpusetCpus, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && to >= from {
			count += to - from + 1
		}
	}
	return count
}

// hostPort is a port that the scheduler has given to the task.
type hostPort struct {
	listenIP string // address to listen at; empty means all addresses
	port     int32
}

// portForwards returns the options of QEMU's user network that forward the ports of port_map, for TCP and UDP.
func portForwards(portMap []map[string]int, start *sdk.StartRequest) (options []string, err error) {
	guestPorts := map[string]int{}
	for _, m := range portMap {
		maps.Copy(guestPorts, m)
	}
	ports := hostPortsByLabel(start)
	for _, label := range slices.Sorted(maps.Keys(guestPorts)) {
		guest := guestPorts[label]
		host, ok := ports[label]
		switch ip, err := netip.ParseAddr(host.listenIP); {
		case !ok:
			return nil, fmt.Errorf("port_map: unknown port label %q: the task has the ports %q", label, slices.Sorted(maps.Keys(ports)))
		case guest < 1 || guest > 65535:
			return nil, fmt.Errorf("port_map: %q: %d is not a port", label, guest)
		case host.listenIP != "" && (err != nil || !ip.Is4()):
			return nil, fmt.Errorf("port_map: %q: QEMU forwards ports of IPv4 addresses only, and the port has the address %s", label, host.listenIP)
		}
		for _, protocol := range []string{"udp", "tcp"} {
			options = append(options, fmt.Sprintf("hostfwd=%s:%s:%d-:%d", protocol, host.listenIP, host.port, guest))
		}
	}
	return options, nil
}

// hostPortsByLabel returns the ports of the task by their labels. In a network namespace of the group, the emulator listens at the port to which
// the host forwards.
func hostPortsByLabel(start *sdk.StartRequest) map[string]hostPort {
	ports := map[string]hostPort{}
	if start.Resources == nil {
		return ports
	}
	hasOwnNetwork := start.NetworkIsolation != nil && start.NetworkIsolation.Path != ""
	for _, p := range start.Resources.Ports {
		if hasOwnNetwork {
			ports[p.Label] = hostPort{port: cmp.Or(p.To, p.Value)}
		} else {
			ports[p.Label] = hostPort{listenIP: p.HostIP, port: p.Value}
		}
	}
	for _, n := range start.Resources.Networks {
		for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			ports[p.Label] = hostPort{port: p.Value}
		}
	}
	return ports
}
