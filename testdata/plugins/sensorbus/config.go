package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// config is the config block of the plugin.
type config struct {
	Dir         string `codec:"dir"`
	Vendor      string `codec:"vendor"`
	ThermoTasks int    `codec:"thermo_tasks"` // tasks that can read a thermometer at once
	// Pointers, because values of the sdk v0.1.0 would share one map of attributes.
	Models map[string]*modelConfig `codec:"models"`
}

// modelConfig is a block "model".
type modelConfig struct {
	Attributes map[string]string `codec:"attributes"` // such as power = "20 mW"
}

// settings is a valid config.
type settings struct {
	dir             string
	vendor          string
	thermoTasks     int
	modelAttributes map[string]map[string]device.Attribute // key: model
}

func (c config) validate() (settings, error) {
	s := settings{dir: filepath.Clean(c.Dir), vendor: c.Vendor, thermoTasks: c.ThermoTasks,
		modelAttributes: map[string]map[string]device.Attribute{}}
	if !filepath.IsAbs(c.Dir) {
		return s, fmt.Errorf("dir: %q is not an absolute path", c.Dir)
	}
	if err := checkName(c.Vendor); err != nil {
		return s, fmt.Errorf("vendor: %w", err)
	}
	if c.ThermoTasks < 1 || c.ThermoTasks > 100 {
		return s, fmt.Errorf("thermo_tasks: %d is not between 1 and 100", c.ThermoTasks)
	}
	for model, m := range c.Models {
		attributes := map[string]device.Attribute{}
		for name, text := range m.Attributes {
			a, err := parseAttribute(text)
			if err != nil {
				return s, fmt.Errorf("model %q: attribute %s: %w", model, name, err)
			}
			attributes[name] = a
		}
		s.modelAttributes[model] = attributes
	}
	return s, nil
}

// parseAttribute parses a number with or without a unit, true or false, or else a text.
func parseAttribute(text string) (device.Attribute, error) {
	if b, err := strconv.ParseBool(text); err == nil && (text == "true" || text == "false") {
		return device.Attribute{Value: b}, nil
	}
	number, unit, _ := strings.Cut(strings.TrimSpace(text), " ")
	var a device.Attribute
	if i, err := strconv.ParseInt(number, 10, 64); err == nil {
		a = device.Attribute{Value: i, Unit: unit}
	} else if f, err := strconv.ParseFloat(number, 64); err == nil {
		a = device.Attribute{Value: f, Unit: unit}
	} else {
		a = device.Attribute{Value: text}
	}
	return a, a.Validate()
}

// checkName rejects a text that cannot be a part of the name of a group.
func checkName(name string) error {
	if name == "" {
		return errors.New("it is empty")
	}
	if strings.ContainsAny(name, "/\n") {
		return fmt.Errorf("%q contains a slash or a line break", name)
	}
	return nil
}

// groupID returns the name of the group of a node: vendor/kind/model.
func (s settings) groupID(n node) device.GroupID {
	return device.GroupID{Vendor: s.vendor, Type: n.kind, Name: n.model}
}

// attributes returns the attributes of all nodes of the kind and model of n.
func (s settings) attributes(n node) map[string]device.Attribute {
	all := map[string]device.Attribute{"writable": {Value: n.kind == relay}}
	for name, a := range s.modelAttributes[n.model] {
		all[name] = a
	}
	return all
}

// deviceIDs returns the ids of the devices of a node. A relay is one device, which one task can
// have. A thermometer is as many devices as tasks can read it.
func (s settings) deviceIDs(n node) []string {
	ids := []string{n.kind + "/" + n.name}
	if n.kind == thermo {
		for i := 2; i <= s.thermoTasks; i++ {
			ids = append(ids, fmt.Sprintf("%s#%d", ids[0], i))
		}
	}
	return ids
}

// nodeOfDeviceID is the inverse of deviceIDs.
func nodeOfDeviceID(dir, id string) (path, name string) {
	id, _, _ = strings.Cut(id, "#")
	return filepath.Join(dir, id), filepath.Base(id)
}
