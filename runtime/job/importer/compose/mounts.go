package compose

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// mount is a mount block of a task.
type mount struct {
	kind, source, target string
	readOnly             bool
	propagation          string
	noCopy               bool
	labels               map[string]string
	driver               string
	driverOptions        map[string]string
	size                 int64
	mode                 int
}

// template is a file with a content that the job has.
type template struct {
	data, destination, perms string
	uid, gid                 string
}

// readVolumes reads the volumes and tmpfs of a service.
func (t *task) readVolumes() error {
	if volumes := t.get("volumes"); volumes != nil {
		for _, item := range volumes.items {
			if err := t.readVolume(item); err != nil {
				return err
			}
		}
	}
	if tmpfs := t.get("tmpfs"); tmpfs != nil {
		for _, item := range tmpfs.items {
			target, options, _ := strings.Cut(item.text, ":")
			m := mount{kind: "tmpfs", target: target}
			for _, option := range strings.Split(options, ",") {
				name, text, _ := strings.Cut(option, "=")
				v := newScalar(item.at, text)
				var err error
				switch name {
				case "":
				case "size":
					m.size, err = v.asBytes()
				case "mode":
					m.mode, err = octal(v).asInt()
				default:
					t.Add(item.at, "the option %s of tmpfs has no counterpart", name)
				}
				if err != nil {
					return err
				}
			}
			t.mounts = append(t.mounts, m)
		}
	}
	return nil
}

// octal returns a value that asInt reads in base 8.
func octal(v *value) *value {
	return newScalar(v.at, "0o"+strings.TrimPrefix(strings.TrimPrefix(v.text, "0o"), "0"))
}

func (t *task) readVolume(v *value) error {
	target := fieldText(v, "target")
	if target == "" {
		return importer.Errorf(v.at, "a volume of %s has no target", t.service.name)
	}
	readOnly, err := v.get("read_only").asBool()
	if err != nil {
		return err
	}
	m := mount{kind: fieldText(v, "type"), source: fieldText(v, "source"), target: target, readOnly: readOnly}
	mode := fieldText(v, "mode")
	for _, option := range strings.Split(mode, ",") {
		switch option {
		case "", "rw", "cached", "delegated", "consistent":
		case "ro":
			m.readOnly = true
		case "nocopy":
			m.noCopy = true
		default:
			if m.kind != "bind" { // a bind mount keeps its options
				t.Add(v.at, "the option %s of the volume at %s has no counterpart", option, target)
			}
		}
	}
	t.warnOfVolumeKeys(v, m.kind)
	switch m.kind {
	case "bind":
		t.needs.volumes = true
		if bind := v.get("bind"); bind != nil {
			m.propagation = fieldText(bind, "propagation")
			if label := fieldText(bind, "selinux"); label != "" {
				mode = strings.TrimPrefix(mode+","+label, ",")
			}
		}
		mustExist := fieldText(v.get("bind"), "create_host_path") == "false"
		if mustExist || m.propagation != "" || strings.Contains(m.source+target, ":") {
			if label := v.get("bind").get("selinux"); label != nil {
				t.Add(label.at, "selinux has no counterpart together with propagation, create_host_path: false, or a colon in a path")
			}
			break
		}
		if readOnly {
			mode = strings.TrimPrefix(mode+",ro", ",")
		}
		text := m.source + ":" + target
		if mode != "" {
			text += ":" + mode
		}
		t.volumes = append(t.volumes, text)
		return nil
	case "volume":
		t.needs.volumes = true
		return t.addNamedVolume(v, m)
	case "tmpfs":
		if size := v.get("tmpfs").get("size"); size != nil {
			if m.size, err = size.asBytes(); err != nil {
				return err
			}
		}
		if mode := v.get("tmpfs").get("mode"); mode != nil {
			if m.mode, err = octal(mode).asInt(); err != nil {
				return err
			}
		}
		m.source = ""
	default:
		t.Add(v.at, "the volume type %q has no counterpart, and %s of %s is left out", m.kind, target, t.service.name)
		return nil
	}
	t.mounts = append(t.mounts, m)
	return nil
}

// addNamedVolume adds a mount of a volume of the engine, with the name that compose gives it, so that its data stay.
func (t *task) addNamedVolume(v *value, m mount) error {
	if noCopy, err := v.get("volume").get("nocopy").asBool(); err != nil {
		return err
	} else if noCopy {
		m.noCopy = true
	}
	if subpath := v.get("volume").get("subpath"); subpath != nil {
		t.Add(subpath.at, "subpath of a volume has no counterpart: the whole volume is mounted")
	}
	if m.source == "" {
		t.Add(v.at, "the volume of %s at %s has no name: it gets one, so that its data survive a restart", t.service.name, m.target)
		m.source = t.converter.name + "_" + t.service.name + "_" + importer.Label(strings.TrimPrefix(m.target, "/"))
		t.mounts = append(t.mounts, m)
		return nil
	}
	declared := t.project.get("volumes")
	if declared == nil || declared.fields[m.source] == nil {
		return importer.Errorf(v.at, "the volume %q of %s is not declared in volumes", m.source, t.service.name)
	}
	volume := declared.fields[m.source]
	name := t.converter.name + "_" + m.source
	if external := volume.get("external"); external != nil && external.text != "false" {
		name = m.source
		if external.kind == mapping && external.get("name") != nil {
			name = external.get("name").text
		}
		t.Add(volume.at, "the volume %s must exist before the job runs, or the engine makes an empty one", m.source)
	}
	if given := fieldText(volume, "name"); given != "" {
		name = given
	}
	m.source, m.driver = name, fieldText(volume, "driver")
	var err error
	if m.driverOptions, err = textMap(volume.get("driver_opts")); err != nil {
		return err
	}
	if len(m.driverOptions) > 0 && m.driver == "" {
		m.driver = "local"
	}
	if labels := volume.get("labels"); labels != nil {
		converted, err := labels.toMapping("=")
		if err != nil {
			return err
		}
		if m.labels, err = textMap(converted); err != nil {
			return err
		}
	}
	t.mounts = append(t.mounts, m)
	return nil
}

// readSecretsAndConfigs reads the files of the keys secrets and configs.
func (t *task) readSecretsAndConfigs() error {
	for _, key := range []string{"secrets", "configs"} {
		used := t.get(key)
		if used == nil {
			continue
		}
		for _, item := range used.items {
			if err := t.readFileOf(key, item); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *task) readFileOf(key string, item *value) error {
	name := fieldText(item, "source")
	declared := t.project.get(key).get(name)
	if declared == nil || declared.kind != mapping {
		return importer.Errorf(item.at, "%s of %s names %q, which is not declared", key, t.service.name, name)
	}
	target := fieldText(item, "target")
	switch {
	case target == "" && key == "configs":
		target = "/" + name
	case target == "":
		target = "/run/secrets/" + name
	case !strings.HasPrefix(target, "/") && key == "secrets":
		target = "/run/secrets/" + target
	}
	if strings.Contains(target, ":") {
		return importer.Errorf(item.at, "the target %q of %s has a colon", target, name)
	}
	file := template{destination: path.Join("secrets", importer.Label(name)), perms: "0444", uid: fieldText(item, "uid"), gid: fieldText(item, "gid")}
	if mode := item.get("mode"); mode != nil {
		file.perms = "0" + strings.TrimPrefix(strings.TrimPrefix(mode.text, "0o"), "0")
	}
	switch {
	case declared.get("file") != nil:
		t.needs.volumes = true
		if source := declared.get("file").text; !strings.Contains(source, ":") {
			t.volumes = append(t.volumes, source+":"+target+":ro")
		} else {
			t.mounts = append(t.mounts, mount{kind: "bind", source: source, target: target, readOnly: true})
		}
		for _, option := range []string{"uid", "gid", "mode"} {
			if v := item.get(option); v != nil {
				t.Add(v.at, "%s of %s has no effect: the file of the host is mounted as it is", option, name)
			}
		}
		return nil
	case declared.get("content") != nil:
		file.data = templateText(declared.get("content").text)
	case declared.get("environment") != nil:
		variable := declared.get("environment")
		v, ok := t.loader.lookupIn(t.loader.projectEnv)(variable.text)
		if !ok {
			return importer.Errorf(variable.at, "the variable %s of %s is not set", variable.text, name)
		}
		t.Add(variable.at, "the job file contains the value of %s, which is a secret: a template with nomadVar can take its place", name)
		file.data = templateText(v)
	case declared.get("external") != nil:
		variable := "nomad/jobs/" + t.converter.name
		item := importer.Label(name)
		t.Add(declared.get("external").at, "%s is taken from a variable: nomad-lite var put %s %s=@FILE", name, variable, item)
		file.data = `{{ with nomadVar "` + variable + `" }}{{ .` + item + ` }}{{ end }}`
	default:
		return importer.Errorf(declared.at, "%s has no file, content or environment", name)
	}
	t.templates = append(t.templates, file)
	t.volumes = append(t.volumes, file.destination+":"+target+":ro")
	return nil
}

// templateText returns the text of a template whose output is text.
func templateText(text string) string {
	return strings.ReplaceAll(text, "{{", `{{"{{"}}`)
}

// writeMounts writes the mount blocks.
func (t *task) writeMounts() error {
	c := t.config
	if isHealthcheckDisabled(t.get("healthcheck")) {
		c.Block("healthchecks").Set("disable", true)
	}
	for _, m := range t.mounts {
		block := c.Block("mount")
		block.Set("type", m.kind)
		block.SetNonZero("source", importer.ConfigText(m.source))
		block.Set("target", importer.ConfigText(m.target))
		block.SetNonZero("readonly", m.readOnly)
		if m.propagation != "" {
			block.Block("bind_options").Set("propagation", importer.ConfigText(m.propagation))
		}
		if m.size > 0 || m.mode > 0 {
			options := block.Block("tmpfs_options")
			options.SetNonZero("size", m.size)
			options.SetNonZero("mode", m.mode)
		}
		if m.noCopy || len(m.labels) > 0 || m.driver != "" {
			options := block.Block("volume_options")
			options.SetNonZero("no_copy", m.noCopy)
			options.SetMap("labels", escapeConfigMap(m.labels))
			if m.driver != "" {
				driver := options.Block("driver_config")
				driver.Set("name", importer.ConfigText(m.driver))
				driver.SetMap("options", escapeConfigMap(maps.Clone(m.driverOptions)))
			}
		}
	}
	return nil
}

func (t *task) writeTemplates() error {
	slices.SortStableFunc(t.templates, func(a, b template) int { return strings.Compare(a.destination, b.destination) })
	for _, file := range t.templates {
		block := t.body.Block("template")
		block.Set("data", file.data)
		block.Set("destination", file.destination)
		block.Set("perms", file.perms)
		for _, id := range []struct{ name, text string }{{"uid", file.uid}, {"gid", file.gid}} {
			if id.text == "" {
				continue
			}
			n, err := newScalar(t.at, id.text).asInt()
			if err != nil {
				return err
			}
			block.Set(id.name, n)
		}
	}
	return nil
}
