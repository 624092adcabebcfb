package docker

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/mount"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Paths of the task's directories inside the container. The host sets the same paths in
// the environment of a task whose driver isolates the file system by an image.
const (
	allocPath   = "/alloc"
	localPath   = "/local"
	secretsPath = "/secrets"
)

// setMounts adds the mounts of the task's directories, then the mounts of the host, and then the
// mounts and volumes that the config block of the task names.
func (b *containerBuilder) setMounts() error {
	for _, dir := range []struct{ source, target string }{
		{filepath.Join(b.start.AllocDir, "alloc"), allocPath},
		{filepath.Join(b.start.TaskDir(), "local"), localPath},
		{filepath.Join(b.start.TaskDir(), "secrets"), secretsPath},
	} {
		b.addBindMount(mount.Mount{Type: mount.TypeBind, Source: dir.source, Target: dir.target}, "")
	}
	for _, m := range b.start.Mounts {
		// The operator has chosen the path. The path of a host volume has no links that a task
		// could have made.
		b.addBindMount(mount.Mount{
			Type: mount.TypeBind, Source: m.HostPath, Target: m.TaskPath, ReadOnly: m.Readonly,
			BindOptions: &mount.BindOptions{Propagation: b.hostPropagation(m.PropagationMode)},
		}, m.SELinuxLabel)
	}
	for _, v := range b.taskConfig.Volumes {
		if err := b.addVolume(v); err != nil {
			return fmt.Errorf("volumes: %q: %w", v, err)
		}
	}
	b.hostConfig.VolumeDriver = b.taskConfig.VolumeDriver
	if b.taskConfig.VolumeDriver != "" && !b.pluginConfig.Volumes.Enabled {
		return fmt.Errorf("volume_driver is refused: %s", volumesDisabledText)
	}
	for _, m := range slices.Concat(b.taskConfig.Mount, b.taskConfig.Mounts) {
		parsed, err := b.parseMount(m)
		if err != nil {
			return fmt.Errorf("mount %q: %w", m.Target, err)
		}
		b.hostConfig.Mounts = append(b.hostConfig.Mounts, parsed)
	}
	return nil
}

// hostPropagation returns the propagation of a mount of the host. The agent has checked that the operator allows it.
func (b *containerBuilder) hostPropagation(mode string) mount.Propagation {
	switch mode {
	case "host-to-task":
		return mount.PropagationRSlave
	case "bidirectional":
		return b.sharedPropagation(mount.PropagationRShared)
	}
	return ""
}

// bindPropagation checks the propagation of a bind mount that the task names itself.
func (b *containerBuilder) bindPropagation(text string) (mount.Propagation, error) {
	p := mount.Propagation(text)
	switch {
	case !slices.Contains(mount.Propagations, p):
		return "", fmt.Errorf("propagation is %q; it must be one of %q", text, mount.Propagations)
	case p != mount.PropagationShared && p != mount.PropagationRShared:
		return p, nil
	case !b.pluginConfig.Volumes.Enabled:
		return "", fmt.Errorf("the propagation %q is refused, because mounts of the task would appear on the machine: %s, or name a host volume with allow_bidirectional", text, volumesDisabledText)
	}
	return b.sharedPropagation(p), nil
}

// addBindMount adds a bind mount with an SELinux label; empty means the label of the plugin's
// configuration. A mount with a label is added as a bind string, because the engine has labels only
// in bind strings.
func (b *containerBuilder) addBindMount(m mount.Mount, selinuxLabel string) {
	selinuxLabel = cmp.Or(selinuxLabel, b.pluginConfig.Volumes.SELinuxLabel)
	if selinuxLabel == "" {
		b.hostConfig.Mounts = append(b.hostConfig.Mounts, m)
		return
	}
	options := selinuxLabel
	if m.ReadOnly {
		options += ",ro"
	}
	if m.BindOptions != nil && m.BindOptions.Propagation != "" {
		options += "," + string(m.BindOptions.Propagation)
	}
	b.hostConfig.Binds = append(b.hostConfig.Binds, m.Source+":"+m.Target+":"+options)
}

const volumesDisabledText = `the operator must write volumes { enabled = true } into the configuration of the driver "docker"`

// hostMountSource is a resolved path of the host that a task names.
type hostMountSource struct {
	resolvedPath                 string
	taskOrAllocDir, relativePath string // the task directory or shared alloc directory with the path, and the path relative to it; "" for a path elsewhere
	isInTaskDir                  bool   // true if taskOrAllocDir is the directory of the task
}

// isReplaceableByTask reports whether a task can write to the directory in which the last element of the
// path is looked up. In the top directory of a task, only the agent can write.
func (s hostMountSource) isReplaceableByTask() bool {
	return s.taskOrAllocDir != "" && (strings.Contains(s.relativePath, "/") || !s.isInTaskDir && s.relativePath != ".")
}

// resolveAllowedHostPath returns the resolved path of a file or directory on the host. A relative path
// is below the task's directory. Without volumes.enabled the path must be, after all links
// are followed, in the directory of the task or in the shared directory of its allocation.
func (b *containerBuilder) resolveAllowedHostPath(path string) (hostMountSource, error) {
	taskDir, err := filepath.EvalSymlinks(b.start.TaskDir())
	if err != nil {
		return hostMountSource{}, err
	}
	allocDir, err := filepath.EvalSymlinks(b.start.AllocDir)
	if err != nil {
		return hostMountSource{}, err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(taskDir, path)
	}
	resolved, err := resolveLinksAllowMissing(path)
	if err != nil {
		return hostMountSource{}, err
	}
	for _, private := range []string{"private", driver.MountsDir} {
		if isPathEqualOrBelow(resolved, filepath.Join(taskDir, private)) {
			return hostMountSource{}, fmt.Errorf("the directory %s is not for tasks", resolved)
		}
	}
	for _, dir := range []string{taskDir, filepath.Join(allocDir, "alloc")} {
		if isPathEqualOrBelow(resolved, dir) {
			name, err := filepath.Rel(dir, resolved)
			return hostMountSource{resolved, dir, name, dir == taskDir}, err
		}
	}
	if b.pluginConfig.Volumes.Enabled {
		return hostMountSource{resolvedPath: resolved}, nil
	}
	return hostMountSource{}, fmt.Errorf("the path %s is outside of the directories of the task: %s", resolved, volumesDisabledText)
}

// resolveMountSource returns the path of a file or directory that the engine mounts. A directory that does not exist is created if
// createIfMissing is set.
func (b *containerBuilder) resolveMountSource(path string, createIfMissing bool) (string, error) {
	s, err := b.resolveAllowedHostPath(path)
	switch {
	case err != nil:
		return "", err
	case s.isInTaskDir && s.relativePath == "." && !b.pluginConfig.Volumes.Enabled:
		return "", fmt.Errorf("the directory %s has directories that are not for tasks: name one of its subdirectories, such as local", s.resolvedPath)
	case !s.isReplaceableByTask():
		return s.resolvedPath, nil
	case b.cannotBindMountReason == nil:
		return b.addDriverMountedSource(driverMountedSource{hostMountSource: s, createIfMissing: createIfMissing}), nil
	case s.isInTaskDir:
		// Only the task itself can write to the directory, and none of its processes runs before
		// the start.
		b.plan.engineMountsTaskReplaceablePaths = true
		return s.resolvedPath, nil
	case b.pluginConfig.Volumes.Enabled:
		return s.resolvedPath, nil
	}
	return "", fmt.Errorf("%s is below a directory in which tasks can write: one could replace it by a link while the engine mounts it, and the driver cannot mount it itself, because %w. Name a path below the local directory of the task, or the directory %s itself, or the operator must write volumes { enabled = true } into the configuration of the driver \"docker\"", s.resolvedPath, b.cannotBindMountReason, s.taskOrAllocDir)
}

// addDriverMountedSource returns the path at which the driver will mount a source.
func (b *containerBuilder) addDriverMountedSource(s driverMountedSource) (mountPath string) {
	s.mountPointName = strconv.Itoa(len(b.plan.driverMountedSources))
	b.plan.driverMountedSources = append(b.plan.driverMountedSources, s)
	return filepath.Join(sourceMountsDir(b.start), s.mountPointName)
}

// resolveLinksAllowMissing follows the links of a path whose last elements need not exist.
func resolveLinksAllowMissing(path string) (string, error) {
	path = filepath.Clean(path)
	resolved, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return resolved, err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%s is a link to a file that does not exist", path) // rejected because the engine would create the file
	}
	dir, err := resolveLinksAllowMissing(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// isPathEqualOrBelow reports whether a resolved path is dir or below it.
func isPathEqualOrBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// addVolume adds the mount of "source:target" or "source:target:mode". The source is a path, or the name of a volume if the
// task has a volume_driver.
func (b *containerBuilder) addVolume(volumeSpec string) error {
	parts := strings.Split(volumeSpec, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return errors.New(`it must have the form "source:target" or "source:target:mode"`)
	}
	source, target, mode := parts[0], parts[1], "rw"
	if len(parts) == 3 {
		mode = parts[2]
	}
	if !filepath.IsAbs(target) {
		target = "/" + target
	}
	parsed, label, modeErr := parseVolumeMode(mode)
	if modeErr != nil && !b.pluginConfig.Volumes.Enabled {
		return modeErr
	}
	options := strings.Split(mode, ",")
	for i, option := range options {
		if p := mount.Propagation(option); p == mount.PropagationShared || p == mount.PropagationRShared {
			propagation, err := b.bindPropagation(option)
			if err != nil {
				return err
			}
			options[i] = string(propagation)
			parsed.BindOptions = &mount.BindOptions{Propagation: propagation}
		}
	}
	mode = strings.Join(options, ",")
	if b.taskConfig.VolumeDriver == "" {
		before := len(b.plan.driverMountedSources)
		var err error
		if source, err = b.resolveMountSource(source, true); err != nil {
			return err
		}
		if len(b.plan.driverMountedSources) > before && modeErr == nil {
			// The engine creates the source of a bind string that it does not find, but not of a
			// mount: so an engine that does not see the mounts of the driver reports an error.
			parsed.Type, parsed.Source, parsed.Target = mount.TypeBind, source, target
			b.addBindMount(parsed, label)
			return nil
		}
		if strings.Contains(source, ":") {
			return fmt.Errorf("the path %s has a colon; write a mount block instead", source)
		}
	}
	if label := b.pluginConfig.Volumes.SELinuxLabel; label != "" {
		mode += "," + label
	}
	b.hostConfig.Binds = append(b.hostConfig.Binds, source+":"+target+":"+mode)
	return nil
}

// parseVolumeMode parses the mode of a volume. Engines have modes that name paths of the host (Podman's overlay), or change the
// owners of the source: a mode that is not listed here is an error, and the operator must allow all paths.
func parseVolumeMode(mode string) (m mount.Mount, selinuxLabel string, err error) {
	for _, option := range strings.Split(mode, ",") {
		switch {
		case option == "ro":
			m.ReadOnly = true
		case option == "z", option == "Z":
			selinuxLabel = option
		case option != "" && slices.Contains(mount.Propagations, mount.Propagation(option)):
			m.BindOptions = &mount.BindOptions{Propagation: mount.Propagation(option)}
		case !slices.Contains([]string{"rw", "nocopy", "consistent", "cached", "delegated"}, option):
			return m, "", fmt.Errorf("the mode %q is refused: %s", option, volumesDisabledText)
		}
	}
	return m, selinuxLabel, nil
}

func (b *containerBuilder) parseMount(m mountConfig) (mount.Mount, error) {
	parsed := mount.Mount{Type: mount.Type(m.Type), Source: m.Source, Target: m.Target, ReadOnly: m.Readonly}
	if m.Target == "" {
		return parsed, errors.New("target is empty; name the path in the container")
	}
	if p := m.BindOptions.Propagation; p != "" {
		propagation, err := b.bindPropagation(p)
		if err != nil {
			return parsed, fmt.Errorf("bind_options: %w", err)
		}
		if parsed.Type == mount.TypeBind {
			parsed.BindOptions = &mount.BindOptions{Propagation: propagation}
		}
	}
	switch parsed.Type {
	case mount.TypeBind:
		var err error
		parsed.Source, err = b.resolveMountSource(m.Source, false)
		return parsed, err
	case mount.TypeTmpfs:
		if m.Source != "" {
			return parsed, errors.New("source must be empty for the type tmpfs")
		}
		parsed.TmpfsOptions = &mount.TmpfsOptions{SizeBytes: m.TmpfsOptions.SizeBytes, Mode: os.FileMode(m.TmpfsOptions.Mode)}
		return parsed, nil
	case mount.TypeVolume:
		// The options of a volume driver can make any path of the host the volume.
		if !b.pluginConfig.Volumes.Enabled {
			return parsed, fmt.Errorf("the type volume is refused: %s", volumesDisabledText)
		}
		o := m.VolumeOptions
		parsed.VolumeOptions = &mount.VolumeOptions{NoCopy: o.NoCopy, Labels: o.Labels}
		if o.DriverConfig.Name != "" || len(o.DriverConfig.Options) > 0 {
			parsed.VolumeOptions.DriverConfig = &mount.Driver{Name: o.DriverConfig.Name, Options: o.DriverConfig.Options}
		}
		return parsed, nil
	}
	return parsed, fmt.Errorf("type is %q; it must be bind, tmpfs or volume", m.Type)
}
