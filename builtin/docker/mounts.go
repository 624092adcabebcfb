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
		// The path is the operator's, and of a host volume it has no links that a task could have made.
		b.bind(mount.Mount{
			Type: mount.TypeBind, Source: m.HostPath, Target: m.TaskPath, ReadOnly: m.Readonly,
			BindOptions: &mount.BindOptions{Propagation: hostPropagation[m.PropagationMode]},
		}, m.SELinuxLabel)
	}
	for _, v := range b.task.Volumes {
		if err := b.addVolume(v); err != nil {
			return fmt.Errorf("volumes: %q: %w", v, err)
		}
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

// sourcePath is a resolved path of the host that a task names.
type sourcePath struct {
	path      string
	dir, name string // the directory of the task or the shared directory, and the path below it; dir is empty for other paths
	own       bool   // dir is the directory of the task
}

// isReplaceable reports whether a task can write to the directory in which the last element of the path is looked up. In the
// directory of a task itself, only the agent can.
func (s sourcePath) isReplaceable() bool {
	return s.dir != "" && (strings.Contains(s.name, "/") || !s.own && s.name != ".")
}

// hostPath returns the resolved path of a file or directory on the host. A relative path
// is below the task's directory. Without volumes.enabled the path must be, after all links
// are followed, in the directory of the task or in the shared directory of its allocation.
func (b *containerBuilder) hostPath(path string) (sourcePath, error) {
	taskDir, err := filepath.EvalSymlinks(b.start.TaskDir())
	if err != nil {
		return sourcePath{}, err
	}
	allocDir, err := filepath.EvalSymlinks(b.start.AllocDir)
	if err != nil {
		return sourcePath{}, err
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(taskDir, path)
	}
	resolved, err := resolve(path)
	if err != nil {
		return sourcePath{}, err
	}
	for _, private := range []string{"private", driver.MountsDir} {
		if isBelow(resolved, filepath.Join(taskDir, private)) {
			return sourcePath{}, fmt.Errorf("the directory %s is not for tasks", resolved)
		}
	}
	for _, dir := range []string{taskDir, filepath.Join(allocDir, "alloc")} {
		if isBelow(resolved, dir) {
			name, err := filepath.Rel(dir, resolved)
			return sourcePath{resolved, dir, name, dir == taskDir}, err
		}
	}
	if b.plugin.Volumes.Enabled {
		return sourcePath{path: resolved}, nil
	}
	return sourcePath{}, fmt.Errorf("the path %s is outside of the directories of the task: %s", resolved, volumesDisabledText)
}

// mountSource returns the path of a file or directory that the engine mounts. A directory that does not exist is created if
// create is set.
func (b *containerBuilder) mountSource(path string, create bool) (string, error) {
	s, err := b.hostPath(path)
	switch {
	case err != nil:
		return "", err
	case s.own && s.name == "." && !b.plugin.Volumes.Enabled:
		return "", fmt.Errorf("the directory %s has directories that are not for tasks: name one of its subdirectories, such as local", s.path)
	case !s.isReplaceable():
		return s.path, nil
	case b.noBind == nil:
		return b.addSource(boundSource{sourcePath: s, create: create}), nil
	case s.own:
		// Only the task itself can write there, and it does not run.
		b.plan.hasOwnSources = true
		return s.path, nil
	case b.plugin.Volumes.Enabled:
		return s.path, nil
	}
	return "", fmt.Errorf("%s is below a directory in which tasks can write: one could replace it by a link while the engine mounts it, and the driver cannot mount it itself, because %w. Name a path below the local directory of the task, or the directory %s itself, or the operator must write volumes { enabled = true } into the configuration of the driver \"docker\"", s.path, b.noBind, s.dir)
}

// addSource returns the path at which the driver will mount a source.
func (b *containerBuilder) addSource(s boundSource) string {
	s.place = strconv.Itoa(len(b.plan.sources))
	b.plan.sources = append(b.plan.sources, s)
	return filepath.Join(mountsPath(b.start), s.place)
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

// addVolume adds the mount of "source:target" or "source:target:mode". The source is a path, or the name of a volume if the
// task has a volume_driver.
func (b *containerBuilder) addVolume(volume string) error {
	parts := strings.Split(volume, ":")
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
	parsed, label, modeErr := parseMode(mode)
	if modeErr != nil && !b.plugin.Volumes.Enabled {
		return modeErr
	}
	if b.task.VolumeDriver == "" {
		before := len(b.plan.sources)
		var err error
		if source, err = b.mountSource(source, true); err != nil {
			return err
		}
		if len(b.plan.sources) > before && modeErr == nil {
			// The engine creates the source of a bind string that it does not find, but not of a mount: an engine that does
			// not see the mounts of the driver reports it.
			parsed.Type, parsed.Source, parsed.Target = mount.TypeBind, source, target
			b.bind(parsed, label)
			return nil
		}
		if strings.Contains(source, ":") {
			return fmt.Errorf("the path %s has a colon; write a mount block instead", source)
		}
	}
	if label := b.plugin.Volumes.SELinuxLabel; label != "" {
		mode += "," + label
	}
	b.host.Binds = append(b.host.Binds, source+":"+target+":"+mode)
	return nil
}

// parseMode parses the mode of a volume. Engines have modes that name paths of the host (Podman's overlay), or change the
// owners of the source: a mode that is not listed here is an error, and the operator must allow all paths.
func parseMode(mode string) (m mount.Mount, label string, err error) {
	for _, option := range strings.Split(mode, ",") {
		switch {
		case option == "ro":
			m.ReadOnly = true
		case option == "z", option == "Z":
			label = option
		case option != "" && slices.Contains(mount.Propagations, mount.Propagation(option)):
			m.BindOptions = &mount.BindOptions{Propagation: mount.Propagation(option)}
		case !slices.Contains([]string{"rw", "nocopy", "consistent", "cached", "delegated"}, option):
			return m, "", fmt.Errorf("the mode %q is refused: %s", option, volumesDisabledText)
		}
	}
	return m, label, nil
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
		parsed.Source, err = b.mountSource(m.Source, false)
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
