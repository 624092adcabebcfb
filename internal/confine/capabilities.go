package confine

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KeepProcessCapabilities removes all capabilities except keep and CAP_BLOCK_SUSPEND from all threads of
// a root process, and from every program that it starts. The main function must call it before it
// opens or starts anything: in a program with cgo, KeepProcessCapabilities executes the
// program again, with the same arguments, and returns nil in the second execution. Without
// root it has no effect. After an error some threads can have fewer capabilities than
// others.
func KeepProcessCapabilities(keep ...uint) error {
	if os.Geteuid() != 0 {
		return nil
	}
	// The second execution is dumpable until its first init function. No task of root has CAP_BLOCK_SUSPEND, so that the kernel
	// lets none trace a process that has it.
	keptCaps := uint64(1 << unix.CAP_BLOCK_SUSPEND)
	for _, c := range keep {
		keptCaps |= 1 << c
	}
	var droppedCaps []uintptr
	for c := range uintptr(64) {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil {
			break // c is higher than the kernel's highest capability
		}
		if has == 1 && keptCaps&(1<<c) == 0 {
			droppedCaps = append(droppedCaps, c)
		}
	}
	if len(droppedCaps) == 0 {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capSets [2]unix.CapUserData // each element holds 32 capabilities
	if err := unix.Capget(&header, &capSets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range capSets {
		capSets[i].Permitted &= uint32(keptCaps >> (32 * i))
		capSets[i].Effective, capSets[i].Inheritable = capSets[i].Permitted, 0
	}
	for _, c := range droppedCaps {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno == unix.ENOTSUP { // the program uses cgo
			return reexecWithCapabilities(droppedCaps, &header, &capSets)
		}
		if errno != 0 {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, errno)
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&capSets)), 0); errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}

// reexecWithCapabilities executes the program again from a thread with reduced capabilities, so that
// each thread of the second execution has the reduced capabilities.
func reexecWithCapabilities(droppedCaps []uintptr, header *unix.CapUserHeader, capSets *[2]unix.CapUserData) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, c := range droppedCaps {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	err := unix.Capset(header, &capSets[0])
	if err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	return fmt.Errorf("drop capabilities: %w", err)
}

// KeepCapabilities removes all capabilities except keep from the calling thread, which the
// caller must have locked. The thread keeps its user: root without capabilities can open
// files that root owns, but no file whose mode does not permit it. A user without
// capabilities gets none.
func KeepCapabilities(keep ...uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capSets, keptCaps [2]unix.CapUserData // each element holds 32 capabilities
	err := unix.Capget(&header, &capSets[0])
	for _, c := range keep {
		keptCaps[c/32].Permitted |= 1 << (c % 32)
	}
	for i := range capSets {
		keptCaps[i].Permitted &= capSets[i].Permitted
		keptCaps[i].Effective = keptCaps[i].Permitted
	}
	if err == nil {
		err = unix.Capset(&header, &keptCaps[0])
	}
	if err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
