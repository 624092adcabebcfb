package docker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// setIsolation applies the operator's policy to namespaces, capabilities, runtimes and
// security options.
func (b *containerBuilder) setIsolation() error {
	i := b.taskConfig.isolationConfig
	if i.Privileged && !b.pluginConfig.AllowPrivileged {
		return errors.New(`privileged is refused: the operator must set allow_privileged = true in the configuration of the driver "docker"`)
	}
	if err := b.checkNamespaceModes(); err != nil {
		return err
	}
	b.hostConfig.Privileged = i.Privileged
	b.hostConfig.IpcMode = container.IpcMode(i.IPCMode)
	b.hostConfig.PidMode = container.PidMode(i.PIDMode)
	b.hostConfig.UTSMode = container.UTSMode(i.UTSMode)
	b.hostConfig.UsernsMode = container.UsernsMode(i.UsernsMode)
	b.hostConfig.CgroupnsMode = container.CgroupnsMode(i.CgroupNS)
	if err := b.checkKernelAndStorageOptions(); err != nil {
		return err
	}
	b.hostConfig.Sysctls = i.Sysctl
	b.hostConfig.ReadonlyRootfs = b.taskConfig.ReadonlyRootfs
	b.hostConfig.StorageOpt = b.taskConfig.StorageOpt
	if err := b.setRuntime(); err != nil {
		return err
	}
	if err := b.setCapabilities(); err != nil {
		return err
	}
	for _, opt := range i.SecurityOpt {
		parsed, err := b.checkAndResolveSecurityOpt(opt)
		if err != nil {
			return fmt.Errorf("security_opt: %w", err)
		}
		b.hostConfig.SecurityOpt = append(b.hostConfig.SecurityOpt, parsed)
	}
	return nil
}

// namespacedSysctls are the prefixes of the kernel parameters that a namespace of the container limits to the container.
var namespacedSysctls = []string{"net.", "fs.mqueue.", "kernel.msg", "kernel.sem", "kernel.shm"}

// checkKernelAndStorageOptions returns an error for an option of sysctl or storage_opt that could have an effect outside
// of the container. Engines check these too, but not all of them in the same way.
func (b *containerBuilder) checkKernelAndStorageOptions() error {
	for _, name := range slices.Sorted(maps.Keys(b.taskConfig.Sysctl)) {
		dotted := strings.ReplaceAll(name, "/", ".")
		if !b.pluginConfig.AllowPrivileged && !slices.ContainsFunc(namespacedSysctls, func(prefix string) bool { return strings.HasPrefix(dotted, prefix) }) {
			return fmt.Errorf("sysctl: %q is refused: without allow_privileged = true in the configuration of the driver \"docker\", a task can set parameters that begin with %s", name, strings.Join(namespacedSysctls, ", "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.taskConfig.StorageOpt)) {
		if !b.pluginConfig.Volumes.Enabled && name != "size" && name != "inodes" {
			return fmt.Errorf("storage_opt: %q is refused: %s; without that, a task can set size and inodes", name, volumesDisabledText)
		}
	}
	return nil
}

// canMount reports whether the programs of the container can mount file systems. It must be called after setCapabilities.
func (b *containerBuilder) canMount() bool {
	h := &b.hostConfig
	return h.Privileged || slices.Contains(h.CapAdd, "SYS_ADMIN") || slices.Contains(h.CapAdd, "ALL") && !slices.Contains(h.CapDrop, "SYS_ADMIN")
}

// sharedPropagation returns the propagation of a bind mount whose mounts may appear on the machine. The engine itself mounts
// below it what a link in an image or in a directory of the task leads to, and that would appear on the machine, too. So a
// container that cannot mount gets the mounts of the machine, and the machine none of it.
func (b *containerBuilder) sharedPropagation(wanted mount.Propagation) mount.Propagation {
	if b.canMount() {
		return wanted
	}
	if wanted == mount.PropagationShared {
		return mount.PropagationSlave
	}
	return mount.PropagationRSlave
}

// checkNamespaceModes returns an error if the operator does not allow the mode of a namespace. As under Nomad, each mode that a task
// sets must be allowed, also a mode that shares nothing.
func (b *containerBuilder) checkNamespaceModes() error {
	if b.pluginConfig.AllowPrivileged {
		return nil
	}
	i, allowed := b.taskConfig.isolationConfig, b.pluginConfig.AllowedModes
	for _, mode := range []struct {
		namespace, option, value string
		allowed                  []string
	}{
		{"pid", "pid_mode", i.PIDMode, allowed.PID}, {"ipc", "ipc_mode", i.IPCMode, allowed.IPC},
		{"userns", "userns_mode", i.UsernsMode, allowed.Userns}, {"uts", "uts_mode", i.UTSMode, allowed.UTS},
	} {
		matches := func(pattern string) bool { ok, err := path.Match(pattern, mode.value); return ok && err == nil }
		if mode.value != "" && !slices.ContainsFunc(mode.allowed, matches) {
			return fmt.Errorf("%s = %q is refused: the operator must set allowed_modes { %s = [%q] } or allow_privileged = true in the configuration of the driver \"docker\"",
				mode.option, mode.value, mode.namespace, mode.value)
		}
	}
	// All other modes are rejected: engines have more modes than the documented ones, such as the
	// path of a namespace in Podman.
	if i.CgroupNS != "" && i.CgroupNS != "private" {
		return fmt.Errorf("cgroupns = %q is refused, because the task would not have a namespace of its own: the operator must set allow_privileged = true in the configuration of the driver \"docker\"", i.CgroupNS)
	}
	if mode := b.taskConfig.NetworkMode; mode != "" && !networkName().MatchString(strings.TrimPrefix(mode, "container:")) {
		return fmt.Errorf("network_mode = %q is refused, because it is neither a network nor a container: the operator must set allow_privileged = true in the configuration of the driver \"docker\"", mode)
	}
	return nil
}

// networkName matches names and ids of networks and of containers.
var networkName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`) })

func (b *containerBuilder) setRuntime() error {
	name := b.taskConfig.Runtime
	if _, ok := b.start.DeviceEnv["NVIDIA_VISIBLE_DEVICES"]; ok {
		if name != "" && name != b.pluginConfig.NvidiaRuntime {
			return fmt.Errorf("runtime is %q, and the task's GPU needs the runtime %q: remove the option", name, b.pluginConfig.NvidiaRuntime)
		}
		name = b.pluginConfig.NvidiaRuntime
	}
	if name != "" && !slices.Contains(b.pluginConfig.AllowRuntimes, name) {
		return fmt.Errorf("runtime %q is not allowed: allow_runtimes in the configuration of the driver \"docker\" has %s", name, strings.Join(b.pluginConfig.AllowRuntimes, ", "))
	}
	b.hostConfig.Runtime = name
	return nil
}

// engineCaps are the capabilities that the engine gives a container by default.
var engineCaps = normalizeCaps(append(slices.Clone(defaultAllowCaps), "NET_RAW"))

// setCapabilities drops the engine's default capabilities that the operator does not
// allow, and adds and drops the capabilities that the task names.
func (b *containerBuilder) setCapabilities() error {
	allowed := normalizeCaps(b.pluginConfig.AllowCaps)
	add, drop := normalizeCaps(b.taskConfig.CapAdd), normalizeCaps(b.taskConfig.CapDrop)
	allowsAll := slices.Contains(allowed, "all")
	if slices.Contains(add, "all") && !allowsAll {
		add = allowed // as under Nomad, "all" means all capabilities that the operator allows
	}
	for _, name := range add {
		if !allowsAll && !slices.Contains(allowed, name) {
			return fmt.Errorf("cap_add: the capability %q is not allowed: allow_caps in the configuration of the driver \"docker\" has %s", name, strings.Join(b.pluginConfig.AllowCaps, ", "))
		}
	}
	if !allowsAll && !slices.Contains(drop, "all") && !b.taskConfig.Privileged {
		for _, name := range engineCaps {
			if !slices.Contains(allowed, name) && !slices.Contains(drop, name) {
				drop = append(drop, name)
			}
		}
	}
	b.hostConfig.CapAdd, b.hostConfig.CapDrop = upperCaseCapNames(add), upperCaseCapNames(drop)
	return nil
}

// normalizeCaps returns names of capabilities in lower case and without "cap_".
func normalizeCaps(names []string) []string {
	normal := make([]string, 0, len(names))
	for _, name := range names {
		normal = append(normal, strings.TrimPrefix(strings.ToLower(name), "cap_"))
	}
	return normal
}

func upperCaseCapNames(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, strings.ToUpper(name))
	}
	return all
}

// checkAndResolveSecurityOpt replaces the path of a seccomp profile by the profile, as Docker's command line does:
// the engine does not read files of clients. Engines have options that show the task the settings
// of the machine's kernel (systempaths, unmask), read files (seccomp, with a colon), or switch off
// the access control of the machine: without allow_privileged, only options that do none of this
// are accepted.
func (b *containerBuilder) checkAndResolveSecurityOpt(opt string) (string, error) {
	key, value, _ := strings.Cut(opt, "=")
	switch {
	case key == "seccomp" && value != "unconfined" && value != "builtin":
		return b.readSeccompProfileOpt(value)
	case b.pluginConfig.AllowPrivileged, key == "seccomp":
	case slices.Contains([]string{"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}, opt):
	case key == "apparmor" && value != "unconfined" && value != "":
	case key == "label" && strings.HasPrefix(value, "level:"):
	default:
		return "", fmt.Errorf("%q is refused: without allow_privileged = true in the configuration of the driver \"docker\", a task can have seccomp=FILE, apparmor=PROFILE, label=level:LEVEL and no-new-privileges", opt)
	}
	return opt, nil
}

func (b *containerBuilder) readSeccompProfileOpt(path string) (string, error) {
	file, err := b.resolveAllowedHostPath(path)
	if err != nil {
		return "", err
	}
	const maxProfile = 1 << 20 // bytes; Docker's own profile has 20 kB
	profile, err := safepath.ReadFile(file.resolvedPath, maxProfile)
	if err != nil {
		return "", fmt.Errorf("read the seccomp profile: %w", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, profile); err != nil {
		return "", fmt.Errorf("the seccomp profile %s is not JSON", path) // without the cause, which would quote the file
	}
	return "seccomp=" + compact.String(), nil
}
