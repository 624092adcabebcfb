package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// setHostVolumes reads the host_volume blocks of a client block. A block replaces an earlier one of the same name.
func setHostVolumes(c *Config, i configItem) error {
	if !i.isBlock() {
		return errors.New(`must be a block with a name: host_volume "data" { path = "/srv/data" }`)
	}
	for _, block := range i.children {
		v, options, err := parseHostVolume(*block)
		if err != nil {
			return &errorWithRange{block.sourceRange, fmt.Errorf("host_volume %q: %w", block.name, err)}
		}
		if c.Node.HostVolumes == nil {
			c.Node.HostVolumes = make(map[string]*api.HostVolumeInfo)
		}
		c.Node.HostVolumes[block.name] = v
		if c.Node.HostVolumeOptions == nil {
			c.Node.HostVolumeOptions = make(map[string]model.HostVolumeOptions)
		}
		c.Node.HostVolumeOptions[block.name] = options
	}
	return nil
}

func parseHostVolume(block configItem) (v *api.HostVolumeInfo, o model.HostVolumeOptions, err error) {
	if !block.isBlock() {
		return nil, o, errors.New(`must be a block: host_volume "data" { path = "/srv/data" }`)
	}
	v = new(api.HostVolumeInfo)
	for _, s := range block.children {
		switch s.name {
		// Absolute path of the directory. [type: string; reload]
		case "path":
			v.Path, err = s.parseScalarAsString()
		// Tasks cannot write to the directory. [type: bool; reload]
		case "read_only":
			v.ReadOnly, err = s.parseBoolean()
		// Mounts that a task makes below the directory may appear on the machine. [type: bool; reload]
		case "allow_bidirectional":
			o.Bidirectional, err = s.parseBoolean()
		// The directory stands in for the CSI volume of this name: `volume { type = "csi" }`. [type: bool; reload; not in Nomad]
		case "csi":
			o.CSI, err = s.parseBoolean()
		// Jobs mount a directory for each allocation, such as data[0], with per_alloc = true. The agent makes it. [type: bool; reload; not in Nomad]
		case "per_alloc":
			o.PerAlloc, err = s.parseBoolean()
		default:
			err = fmt.Errorf("is not a setting of a host_volume block: it has %s%s", joinNames(hostVolumeSettingNames), didYouMean(s.name, slices.Values(hostVolumeSettingNames)))
		}
		if err != nil {
			return nil, o, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if !filepath.IsAbs(v.Path) {
		return nil, o, fmt.Errorf("path is %q: it must be an absolute path", v.Path)
	}
	v.Path = filepath.Clean(v.Path)
	return v, o, nil
}

func absolutePathSetting(field func(*Config) *string) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[string](), setInConfig: func(c *Config, i configItem) error {
		path, err := i.parseScalarAsString()
		if err == nil && !filepath.IsAbs(path) {
			err = fmt.Errorf("%q must be an absolute path", path)
		}
		*field(c) = path
		return err
	}}
}
