package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxStoredResponseSize is the maximum size of a TaskPrestartResponse, in bytes: the
// response is stored in memory and on disk until the task is removed.
const maxStoredResponseSize = 1 << 20

// maxEnvVarSize is the maximum size of one environment variable in execve(2), in bytes.
var maxEnvVarSize = 32 * os.Getpagesize()

// mountOrDeviceOverhead is the estimated size of an entry of Mounts or Devices without its
// texts, in bytes.
const mountOrDeviceOverhead = 64

// Fault returns the reason why a host rejects the response, or nil.
func (r TaskPrestartResponse) Fault() error {
	if size := r.storedSize(); size > maxStoredResponseSize {
		return fmt.Errorf("its answer has %d bytes, more than the %d that are kept for a task", size, maxStoredResponseSize)
	}
	for name, value := range r.Env {
		// The error does not contain the value, which may be a secret.
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("it sets the variable %q to what no environment can hold", name)
		}
		if size := len(name) + len(value) + len("=\x00"); size > maxEnvVarSize {
			return fmt.Errorf("it sets the variable %q, of %d bytes, and no process can be given one with more than %d", name, size, maxEnvVarSize)
		}
	}
	for _, m := range r.Mounts {
		if !isCleanAbsPath(m.TaskPath) || !isCleanAbsPath(m.HostPath) {
			return fmt.Errorf("it mounts %q at %q: both must be absolute, and without .. in them", m.HostPath, m.TaskPath)
		}
		if !slices.Contains(propagationModes, m.PropagationMode) {
			return fmt.Errorf("it mounts %q with propagation mode %q: there are %s", m.HostPath, m.PropagationMode, strings.Join(propagationModes[1:], ", "))
		}
	}
	for _, d := range r.Devices {
		if !isCleanAbsPath(d.TaskPath) || !isCleanAbsPath(d.HostPath) || strings.Trim(d.Permissions, "rwm") != "" {
			return fmt.Errorf("it shows the device %q at %q with permissions %q: the paths must be absolute, without .., and the permissions some of r, w and m", d.HostPath, d.TaskPath, d.Permissions)
		}
	}
	return nil
}

// propagationModes are the modes that drivers support; "" means the driver's default.
var propagationModes = []string{"", "private", "host-to-task", "bidirectional"}

// isCleanAbsPath reports whether a path is absolute and contains neither ".." nor a NUL
// byte.
func isCleanAbsPath(path string) bool {
	return filepath.IsAbs(path) && !strings.Contains(path, "\x00") && !slices.Contains(strings.Split(path, "/"), "..")
}

func (r TaskPrestartResponse) storedSize() (size int) {
	for _, m := range []map[string]string{r.Env, r.State} {
		for key, value := range m {
			size += len(key) + len(value)
		}
	}
	for _, m := range r.Mounts {
		size += mountOrDeviceOverhead + len(m.TaskPath) + len(m.HostPath) + len(m.PropagationMode) + len(m.SELinuxLabel)
	}
	for _, d := range r.Devices {
		size += mountOrDeviceOverhead + len(d.TaskPath) + len(d.HostPath) + len(d.Permissions)
	}
	return size
}
