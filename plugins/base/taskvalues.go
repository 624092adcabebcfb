package base

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxEnvVarSize is the maximum size of one environment variable in execve(2), in bytes.
var maxEnvVarSize = 32 * os.Getpagesize()

// CheckEnvVar returns the reason why a plugin cannot set a variable for a task, or nil. The error
// does not contain the value, which may be a secret. For hosts only.
func CheckEnvVar(name, value string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
		return fmt.Errorf("it sets the variable %q to what no environment can hold", name)
	}
	if size := len(name) + len(value) + len("=\x00"); size > maxEnvVarSize {
		return fmt.Errorf("it sets the variable %q, of %d bytes, and no process can be given one with more than %d", name, size, maxEnvVarSize)
	}
	return nil
}

// CheckDeviceSyntax returns the reason why a plugin cannot share a device with a task, or nil. For hosts only.
func CheckDeviceSyntax(hostPath, taskPath, permissions string) error {
	if !isAbsPathWithoutDotDot(taskPath) || !isAbsPathWithoutDotDot(hostPath) || strings.Trim(permissions, "rwm") != "" {
		return fmt.Errorf("it shares the device %q at %q with permissions %q: the paths must be absolute, without .., and the permissions some of r, w and m", hostPath, taskPath, permissions)
	}
	return nil
}

// CheckMountPathSyntax returns the reason why a plugin cannot mount a path of the host in a task, or
// nil. For hosts only.
func CheckMountPathSyntax(hostPath, taskPath string) error {
	if !isAbsPathWithoutDotDot(taskPath) || !isAbsPathWithoutDotDot(hostPath) {
		return fmt.Errorf("it mounts %q at %q: both must be absolute, and without .. in them", hostPath, taskPath)
	}
	return nil
}

// isAbsPathWithoutDotDot reports whether a path is absolute and contains neither ".." nor a NUL
// byte.
func isAbsPathWithoutDotDot(path string) bool {
	return filepath.IsAbs(path) && !strings.Contains(path, "\x00") && !slices.Contains(strings.Split(path, "/"), "..")
}
