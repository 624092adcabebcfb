package stage

import (
	"fmt"
	"math/bits"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropPrivileges changes the user and the capabilities of the calling thread, which cannot gain privileges
// afterwards by executing a program.
func (u *User) dropPrivileges() error {
	for c := range uintptr(64) {
		if u.BoundingCaps&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			break // c is higher than the kernel's highest capability
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if err := u.setThreadIDs(); err != nil {
		return fmt.Errorf("become user %d, group %d: %w", u.UID, u.GID, err)
	}
	if err := u.setThreadCapabilities(); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// setThreadIDs changes the ids of this thread only: package syscall would change the ids of all threads,
// with a signal to each.
func (u *User) setThreadIDs() error {
	if u.KeepStageIDs {
		return nil
	}
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); errno != 0 {
		return errno
	}
	gid, uid := uintptr(u.GID), uintptr(u.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return errno
	}
	return nil
}

func (u *User) setThreadCapabilities() error {
	start := u.AmbientCaps
	if u.UID == 0 {
		start = u.BoundingCaps
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // each element holds 32 capabilities
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	for i := range sets {
		sets[i].Permitted &= uint32(start >> (32 * i))
		sets[i].Effective = sets[i].Permitted
		sets[i].Inheritable = sets[i].Permitted & uint32(u.AmbientCaps>>(32*i))
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return err
	}
	for rest := u.AmbientCaps; rest != 0; rest &= rest - 1 {
		c := bits.TrailingZeros64(rest)
		if sets[c/32].Permitted&(1<<(c%32)) == 0 {
			continue // the driver itself does not have this capability
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// installSyscallFilter installs the filter for the calling thread.
func (u *User) installSyscallFilter() error {
	if len(u.SyscallFilter) == 0 {
		return nil
	}
	const size = int(unsafe.Sizeof(unix.SockFilter{}))
	program := unix.SockFprog{Len: uint16(len(u.SyscallFilter) / size), Filter: (*unix.SockFilter)(unsafe.Pointer(&u.SyscallFilter[0]))}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(u.SyscallFilter)
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
