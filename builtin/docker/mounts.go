package docker

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/mount"
)

// Paths of the task's directories inside the container. The host sets the same paths in
// the environment of a task whose driver isolates the file system by an image.
const (
	allocPath   = "/alloc"
	localPath   = "/local"
	secretsPath = "/secrets"
)

// setMounts mounts the directories of the task, then what the host and the task add.
func (b *containerBuilder) setMounts() error {
	for _, dir := range []struct{ source, target string }{
		{filepath.Join(b.start.AllocDir, "alloc"), allocPath},
		{filepath.Join(b.start.TaskDir(), "local"), localPath},
		{filepath.Join(b.start.TaskDir(), "secrets"), secretsPath},
	} {
		b.bind(mount.Mount{Type: mount.TypeBind, Source: dir.source, Target: dir.target}, "")
	}
	for _, m := range b.start.Mounts {
		b.bind(mount.Mount{
			Type: mount.TypeBind, Source: m.HostPath, Target: m.TaskPath, ReadOnly: m.Readonly,
			BindOptions: &mount.BindOptions{Propagation: hostPropagation[m.PropagationMode]},
		}, m.SELinuxLabel)
	}
	for _, v := range b.task.Volumes {
		bind, err := b.parseVolume(v)
		if err != nil {
			return fmt.Errorf("volumes: %q: %w", v, err)
		}
		b.host.Binds = append(b.host.Binds, bind)
	}
	b.host.VolumeDriver = b.task.VolumeDriver
	if b.task.VolumeDriver != "" && !b.plugin.Volumes.Enabled {
		return fmt.Errorf("volume_driver is refused: %s", volumesDisabledText)
	}
	for _, m := range slices.Concat(b.task.Mount, b.task.Mounts) {
		parsed, err := b.parseMount(m)
		if err != nil {
			return fmt.Errorf("mount %q: %w", m.Target, err)
		}
		b.host.Mounts = append(b.host.Mounts, parsed)
	}
	return nil
}

var hostPropagation = map[string]mount.Propagation{
	"host-to-task":  mount.PropagationRSlave,
	"bidirectional": mount.PropagationRShared,
}

// bind adds a bind mount with an SELinux label; empty means the label of the plugin's configuration. With a label it must
// be a bind string, because only these carry labels.
func (b *containerBuilder) bind(m mount.Mount, label string) {
	label = cmp.Or(label, b.plugin.Volumes.SELinuxLabel)
	if label == "" {
		b.host.Mounts = append(b.host.Mounts, m)
		return
	}
	options := label
	if m.ReadOnly {
		options += ",ro"
	}
	if m.BindOptions != nil && m.BindOptions.Propagation != "" {
		options += "," + string(m.BindOptions.Propagation)
	}
	b.host.Binds = append(b.host.Binds, m.Source+":"+m.Target+":"+options)
}

const volumesDisabledText = `the operator must write volumes { enabled = true } into the configuration of the driver "docker"`

// hostPath returns the resolved path of a file or directory on the host. A relative path
// is below the task's directory. Without volumes.enabled the path must be, after all links
// are followed, in the directory of the task or in the shared directory of its allocation.
func (b *containerBuilder) hostPath(path string) (string, error) {
	taskDir, err := filepath.EvalSymlinks(b.start.TaskDir())
	if err != nil {
		return "", err
	}
	allocDir, err := filepath.EvalSymlinks(b.start.AllocDir)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(taskDir, path)
	}
	resolved, err := resolve(path)
	if err != nil {
		return "", err
	}
	if isBelow(resolved, filepath.Join(taskDir, "private")) {
		return "", fmt.Errorf("the directory %s is not for tasks", resolved)
	}
	switch {
	case b.plugin.Volumes.Enabled:
		return resolved, nil
	case isBelow(resolved, taskDir), isBelow(resolved, filepath.Join(allocDir, "alloc")):
		b.checkedPaths = append(b.checkedPaths, resolved)
		return resolved, nil
	}
	return "", fmt.Errorf("the path %s is outside of the directories of the task: %s", resolved, volumesDisabledText)
}

// resolve follows the links of a path whose last elements need not exist.
func resolve(path string) (string, error) {
	path = filepath.Clean(path)
	resolved, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return resolved, err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%s is a link to a file that does not exist", path) // the engine would create the file
	}
	dir, err := resolve(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// isBelow reports whether a resolved path is dir or below it.
func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// parseVolume returns the bind string of "source:target" or "source:target:mode". The
// source is a path, or the name of a volume if the task has a volume_driver.
func (b *containerBuilder) parseVolume(volume string) (string, error) {
	parts := strings.Split(volume, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return "", errors.New(`it must have the form "source:target" or "source:target:mode"`)
	}
	mode := "rw"
	if len(parts) == 3 {
		mode = parts[2]
	}
	if label := b.plugin.Volumes.SELinuxLabel; label != "" {
		mode += "," + label
	}
	source := parts[0]
	if b.task.VolumeDriver == "" {
		resolved, err := b.hostPath(source)
		if err != nil {
			return "", err
		}
		if strings.Contains(resolved, ":") {
			return "", fmt.Errorf("the path %s has a colon; write a mount block instead", resolved)
		}
		source = resolved
	}
	target := parts[1]
	if !filepath.IsAbs(target) {
		target = "/" + target
	}
	return source + ":" + target + ":" + mode, nil
}

func (b *containerBuilder) parseMount(m mountConfig) (mount.Mount, error) {
	parsed := mount.Mount{Type: mount.Type(m.Type), Source: m.Source, Target: m.Target, ReadOnly: m.Readonly}
	if m.Target == "" {
		return parsed, errors.New("target is empty; name the path in the container")
	}
	if p := m.BindOptions.Propagation; p != "" && !slices.Contains(mount.Propagations, mount.Propagation(p)) {
		return parsed, fmt.Errorf("bind_options: propagation is %q; it must be one of %q", p, mount.Propagations)
	}
	switch parsed.Type {
	case mount.TypeBind:
		var err error
		parsed.Source, err = b.hostPath(m.Source)
		if p := m.BindOptions.Propagation; p != "" {
			parsed.BindOptions = &mount.BindOptions{Propagation: mount.Propagation(p)}
		}
		return parsed, err
	case mount.TypeTmpfs:
		if m.Source != "" {
			return parsed, errors.New("source must be empty for the type tmpfs")
		}
		parsed.TmpfsOptions = &mount.TmpfsOptions{SizeBytes: m.TmpfsOptions.Size, Mode: os.FileMode(m.TmpfsOptions.Mode)}
		return parsed, nil
	case mount.TypeVolume:
		// A volume can be a path of the host, by the options of its driver.
		if !b.plugin.Volumes.Enabled {
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

// checkUnchanged returns an error if a path that was checked for the operator's policy is
// now a link to another place: another task of the allocation could have replaced a
// directory before the engine mounted it.
func checkUnchanged(paths []string) error {
	for _, path := range paths {
		if now, err := resolve(path); err != nil || now != path {
			return fmt.Errorf("the path %s was replaced by a link while the container was started", path)
		}
	}
	return nil
}
