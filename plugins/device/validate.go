package device

import (
	"errors"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// These limits protect the host, which keeps devices in memory and on disk.
const (
	maxGroups      = 1024    // groups in a message
	maxDevices     = 8192    // devices in all groups of a message
	maxAttributes  = 1024    // attributes of a group
	maxStatDepth   = 16      // levels of nested values of the type StatObject
	maxReservation = 1 << 20 // bytes of a Reservation, which is stored with the task
	entryOverhead  = 64      // estimated bytes of a mount or a device in a Reservation, without its texts
)

// Validate returns an error that names the first invalid field, or nil. A Fingerprint without
// groups is valid.
func (f Fingerprint) Validate() error {
	if len(f.Groups) > maxGroups {
		return fmt.Errorf("%d groups, and at most %d are accepted", len(f.Groups), maxGroups)
	}
	known, devices := make(map[GroupID]bool, len(f.Groups)), 0
	for i, g := range f.Groups {
		if devices += len(g.Devices); devices > maxDevices {
			return fmt.Errorf("more than %d devices", maxDevices)
		}
		if err := g.validate(); err != nil {
			return fmt.Errorf("groups[%d] (%q): %w", i, g.ID, err)
		}
		if known[g.ID] {
			return fmt.Errorf("groups[%d] (%q): an earlier group has the same vendor, type and name", i, g.ID)
		}
		known[g.ID] = true
	}
	return nil
}

func (g GroupID) validate() error {
	switch {
	case g.Vendor == "":
		return errors.New("vendor is empty")
	case g.Type == "":
		return errors.New("type is empty")
	case g.Name == "":
		return errors.New("name is empty")
	}
	return nil
}

func (g Group) validate() error {
	if err := g.ID.validate(); err != nil {
		return err
	}
	known := make(map[string]bool, len(g.Devices))
	for i, d := range g.Devices {
		if d.ID == "" {
			return fmt.Errorf("devices[%d]: id is empty", i)
		}
		if known[d.ID] {
			return fmt.Errorf("devices[%d]: an earlier device of the group has the id %q", i, d.ID)
		}
		known[d.ID] = true
	}
	if len(g.Attributes) > maxAttributes {
		return fmt.Errorf("%d attributes, and at most %d are accepted", len(g.Attributes), maxAttributes)
	}
	for name, a := range g.Attributes {
		if name == "" {
			return errors.New("an attribute has no name")
		}
		if err := a.Validate(); err != nil {
			return fmt.Errorf("attribute %q %w", name, err)
		}
	}
	return nil
}

// Validate returns an error that names the first invalid field, or nil. The error contains no
// value of a variable, which may be a secret.
func (r *Reservation) Validate() error {
	size := 0
	for name, value := range r.Env {
		if err := base.CheckEnvVar(name, value); err != nil {
			return err
		}
		size += len(name) + len(value)
	}
	for _, m := range r.Mounts {
		if err := base.CheckMountPathSyntax(m.HostPath, m.TaskPath); err != nil {
			return err
		}
		size += entryOverhead + len(m.TaskPath) + len(m.HostPath)
	}
	for _, d := range r.Devices {
		if err := base.CheckDeviceSyntax(d.HostPath, d.TaskPath, d.Permissions); err != nil {
			return err
		}
		size += entryOverhead + len(d.TaskPath) + len(d.HostPath) + len(d.Permissions)
	}
	if size > maxReservation {
		return fmt.Errorf("its answer has %d bytes, more than the %d that are kept for a task", size, maxReservation)
	}
	return nil
}

// Validate returns an error that names the first invalid field, or nil.
func (s Stats) Validate() error {
	if len(s.Groups) > maxGroups {
		return fmt.Errorf("%d groups, and at most %d are accepted", len(s.Groups), maxGroups)
	}
	devices := 0
	for i, g := range s.Groups {
		if devices += len(g.Instances); devices > maxDevices {
			return fmt.Errorf("more than %d devices", maxDevices)
		}
		if err := g.validate(); err != nil {
			return fmt.Errorf("groups[%d] (%q): %w", i, g.ID, err)
		}
	}
	return nil
}

func (g GroupStats) validate() error {
	if err := g.ID.validate(); err != nil {
		return err
	}
	for id, d := range g.Instances {
		if id == "" {
			return errors.New("the statistics of a device have an empty id")
		}
		if year := d.Timestamp.Year(); year < 1 || year > 9999 {
			return fmt.Errorf("device %q: timestamp is in the year %d", id, year)
		}
		if err := d.Summary.validate(); err != nil {
			return fmt.Errorf("device %q: summary: %w", id, err)
		}
		if err := d.Stats.validate(maxStatDepth); err != nil {
			return fmt.Errorf("device %q: stats: %w", id, err)
		}
	}
	return nil
}

// validate returns an error if a value in the tree is invalid, or the tree has more than maxLevels levels.
func (o StatObject) validate(maxLevels int) error {
	if maxLevels == 0 {
		return fmt.Errorf("more than %d levels", maxStatDepth)
	}
	for name, v := range o.Attributes {
		if err := v.validate(); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	for name, nested := range o.Nested {
		if err := nested.validate(maxLevels - 1); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

func (v StatValue) validate() error {
	for _, number := range []any{v.Value, v.Max} {
		if f, ok := number.(float64); ok && !isFinite(f) {
			return fmt.Errorf("%v is not a finite number", f)
		}
	}
	switch v.Value.(type) {
	case int, int64:
		switch v.Max.(type) {
		case nil, int, int64:
			return nil
		}
	case float64:
		switch v.Max.(type) {
		case nil, float64:
			return nil
		}
	case nil, string, bool:
		if v.Max == nil {
			return nil
		}
	default:
		return fmt.Errorf("a value of type %T is neither int64, float64, string nor bool", v.Value)
	}
	return fmt.Errorf("a maximum of type %T for a value of type %T", v.Max, v.Value)
}
