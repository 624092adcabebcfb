package seccomp

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// allowedOfArch are the further system calls of this architecture that every task can make.
var allowedOfArch = [...]uint32{}

// rawIOCalls need CAP_SYS_RAWIO.
var rawIOCalls []uint32

// fileModeSyscallsOfArch are the further calls of this architecture that set the mode of a file.
var fileModeSyscallsOfArch = [...]fileModeSyscall{}
