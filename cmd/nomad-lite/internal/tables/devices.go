package tables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// deviceName returns the name of a device in the form vendor/type/name[id].
func deviceName(vendor, deviceType, name, id string) string {
	return fmt.Sprintf("%s/%s/%s[%s]", vendor, deviceType, name, id)
}

// AllocatedDeviceNames returns the names of the devices that a task has.
func AllocatedDeviceNames(alloc *api.Allocation, taskName string) (names []string) {
	if alloc.AllocatedResources == nil {
		return nil
	}
	for _, d := range pointer.Value(alloc.AllocatedResources.Tasks[taskName]).Devices {
		for _, id := range d.DeviceIDs {
			names = append(names, deviceName(d.Vendor, d.Type, d.Name, id))
		}
	}
	return names
}

// DeviceStatsByName maps the name of a device, as deviceName returns it, to the device's statistics.
type DeviceStatsByName map[string]*api.DeviceStats

// NewDeviceStatsByName returns the statistics of all devices in groups.
func NewDeviceStatsByName(groups []*api.DeviceGroupStats) DeviceStatsByName {
	all := make(DeviceStatsByName)
	for _, g := range groups {
		for id, stats := range g.InstanceStats {
			if stats != nil {
				all[deviceName(g.Vendor, g.Type, g.Name, id)] = stats
			}
		}
	}
	return all
}

// Names returns the sorted names of the devices.
func (d DeviceStatsByName) Names() []string { return slices.Sorted(maps.Keys(d)) }

// SummaryPairs returns the name and the summary statistic of each named device.
func (d DeviceStatsByName) SummaryPairs(names []string) output.Pairs {
	var pairs output.Pairs
	for _, name := range names {
		pairs = append(pairs, [2]any{name, formatStat(pointer.Value(d[name]).Summary)})
	}
	return pairs
}

// PrintStatsOf adds all statistics of each named device.
func (d DeviceStatsByName) PrintStatsOf(p *output.Page, deviceNames []string) {
	for i, name := range deviceNames {
		if i > 0 {
			p.AddLine("")
		}
		stats := make(map[string]string)
		addNestedStats(stats, "", pointer.Value(d[name]).Stats)
		p.AddPairs(append(output.Pairs{{"Device", name}}, output.SortedPairs(stats)...))
	}
}

// addNestedStats adds the statistics of o, and of the objects nested in o, to textByDottedName. The key of a statistic
// is prefix and the names of the objects that contain it, separated by dots.
func addNestedStats(textByDottedName map[string]string, prefix string, o *api.StatObject) {
	if o == nil {
		return
	}
	for name, value := range o.Attributes {
		textByDottedName[prefix+name] = formatStat(value)
	}
	for name, nested := range o.Nested {
		addNestedStats(textByDottedName, prefix+name+".", nested)
	}
}

// formatStat returns a statistic with its maximum and its unit, such as "512 / 2048 MiB".
func formatStat(v *api.StatValue) string {
	if v == nil {
		return "-"
	}
	number := func(i *int64, f *float64) string {
		switch {
		case i != nil:
			return fmt.Sprint(*i)
		case f != nil:
			return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", *f), "0"), ".")
		}
		return ""
	}
	value := number(v.IntNumeratorVal, v.FloatNumeratorVal)
	if limit := number(v.IntDenominatorVal, v.FloatDenominatorVal); limit != "" {
		value += " / " + limit
	}
	switch {
	case v.StringVal != nil:
		value = *v.StringVal
	case v.BoolVal != nil:
		value = fmt.Sprint(*v.BoolVal)
	}
	return strings.TrimSpace(cmp.Or(value, "-") + " " + v.Unit)
}

// PrintNodeDevices adds a table of the devices of a node, which shows the allocation to which each device is assigned,
// and the attributes of each device group.
func PrintNodeDevices(p *output.Page, groups []*api.NodeDeviceResource, allocs []*api.Allocation) {
	holders := make(map[string]string)
	for _, a := range allocs {
		if a.AllocatedResources == nil || a.ClientTerminalStatus() {
			continue
		}
		for task := range a.AllocatedResources.Tasks {
			for _, name := range AllocatedDeviceNames(a, task) {
				holders[name] = output.TruncateID(a.ID)
			}
		}
	}
	p.AddSectionTitle("Devices")
	t := output.NewTable("Device", "Healthy", "Allocation", "PCI Bus ID", "Message")
	for _, g := range groups {
		for _, d := range g.Instances {
			name := deviceName(g.Vendor, g.Type, g.Name, d.ID)
			t.AddRow(name, d.Healthy, cmp.Or(holders[name], "-"), cmp.Or(pointer.Value(d.Locality).PciBusID, "-"), cmp.Or(d.HealthDescription, output.EmptyCell))
		}
	}
	p.AddTable(t)
	for _, g := range groups {
		if len(g.Attributes) == 0 {
			continue
		}
		attributes := make(map[string]string, len(g.Attributes))
		for name, a := range g.Attributes {
			attributes[name] = a.String()
		}
		p.AddSectionTitle("Attributes of device " + g.ID())
		p.AddPairs(output.SortedPairs(attributes))
	}
}
