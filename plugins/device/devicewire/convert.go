package devicewire

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/proto/devicepb"
	"github.com/nomad-lite/nomad-lite/plugins/proto/structspb"
)

// The functions with the suffix Proto set every nested message, because existing hosts do not
// check for nil. The functions with the suffix FromProto accept any missing field; the methods Validate
// of package device report missing values.

func fingerprintProto(f device.Fingerprint) (*devicepb.FingerprintResponse, error) {
	p := &devicepb.FingerprintResponse{FailureReason: strings.ToValidUTF8(f.FailureReason, "\uFFFD")}
	for _, g := range f.Groups {
		group := &devicepb.DeviceGroup{
			Vendor: g.ID.Vendor, DeviceType: g.ID.Type, DeviceName: g.ID.Name,
			Attributes: make(map[string]*structspb.Attribute, len(g.Attributes)),
		}
		for _, d := range g.Devices {
			group.Devices = append(group.Devices, &devicepb.DetectedDevice{
				ID: d.ID, Healthy: d.Healthy, HealthDescription: d.HealthDescription,
				HwLocality: &devicepb.DeviceLocality{PciBusId: d.PCIBusID},
			})
		}
		for name, a := range g.Attributes {
			attribute, err := basewire.AttributeProto(a.Value, a.Unit)
			if err != nil {
				return nil, fmt.Errorf("attribute %q of group %q: %w", name, g.ID, err)
			}
			group.Attributes[name] = attribute
		}
		p.DeviceGroup = append(p.DeviceGroup, group)
	}
	return p, nil
}

// maxFailureReasonSize is the maximum size of a FailureReason in bytes, because the host stores it with the node.
const maxFailureReasonSize = 1 << 10

func limitFailureReason(reason string) string {
	if len(reason) <= maxFailureReasonSize {
		return reason
	}
	return strings.ToValidUTF8(reason[:maxFailureReasonSize], "") + "…"
}

func fingerprintFromProto(p *devicepb.FingerprintResponse) device.Fingerprint {
	f := device.Fingerprint{FailureReason: limitFailureReason(p.GetFailureReason())}
	for _, group := range p.GetDeviceGroup() {
		g := device.Group{ID: device.GroupID{Vendor: group.GetVendor(), Type: group.GetDeviceType(), Name: group.GetDeviceName()}}
		for _, d := range group.GetDevices() {
			g.Devices = append(g.Devices, device.Device{
				ID: d.GetID(), Healthy: d.GetHealthy(), HealthDescription: d.GetHealthDescription(),
				PCIBusID: d.GetHwLocality().GetPciBusId(),
			})
		}
		if len(group.GetAttributes()) > 0 {
			g.Attributes = make(map[string]device.Attribute, len(group.GetAttributes()))
		}
		for name, a := range group.GetAttributes() {
			g.Attributes[name] = device.Attribute{Value: basewire.AttributeValue(a), Unit: a.GetUnit()}
		}
		f.Groups = append(f.Groups, g)
	}
	return f
}

func reservationProto(r *device.Reservation) *devicepb.ContainerReservation {
	if r == nil {
		r = &device.Reservation{}
	}
	p := &devicepb.ContainerReservation{Envs: r.Env}
	for _, m := range r.Mounts {
		p.Mounts = append(p.Mounts, &devicepb.Mount{TaskPath: m.TaskPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly})
	}
	for _, d := range r.Devices {
		p.Devices = append(p.Devices, &devicepb.DeviceSpec{TaskPath: d.TaskPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	return p
}

func reservationFromProto(p *devicepb.ContainerReservation) *device.Reservation {
	r := &device.Reservation{Env: p.GetEnvs()}
	for _, m := range p.GetMounts() {
		r.Mounts = append(r.Mounts, device.Mount{TaskPath: m.GetTaskPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range p.GetDevices() {
		r.Devices = append(r.Devices, device.HostDevice{TaskPath: d.GetTaskPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	return r
}

// timestampedStatsProto converts statistics that Validate has accepted. It sets a missing timestamp to the current
// time.
func timestampedStatsProto(s device.Stats) *devicepb.StatsResponse {
	p := &devicepb.StatsResponse{}
	for _, g := range s.Groups {
		group := &devicepb.DeviceGroupStats{
			Vendor: g.ID.Vendor, Type: g.ID.Type, Name: g.ID.Name,
			InstanceStats: make(map[string]*devicepb.DeviceStats, len(g.Instances)),
		}
		for id, d := range g.Instances {
			if d.Timestamp.IsZero() {
				d.Timestamp = time.Now()
			}
			group.InstanceStats[id] = &devicepb.DeviceStats{
				Summary: statValueProto(d.Summary), Stats: statObjectProto(d.Stats), Timestamp: timestamppb.New(d.Timestamp),
			}
		}
		p.Groups = append(p.Groups, group)
	}
	return p
}

// timestampedStatsFromProto converts statistics. It drops the statistics of a device that have no timestamp, and adds
// the id of the device to DeviceIDsWithoutTimestamp.
func timestampedStatsFromProto(p *devicepb.StatsResponse) device.Stats {
	var s device.Stats
	for _, group := range p.GetGroups() {
		g := device.GroupStats{
			ID:        device.GroupID{Vendor: group.GetVendor(), Type: group.GetType(), Name: group.GetName()},
			Instances: make(map[string]device.DeviceStats, len(group.GetInstanceStats())),
		}
		for id, d := range group.GetInstanceStats() {
			if d.GetTimestamp() == nil || d.GetTimestamp().AsTime().IsZero() {
				g.DeviceIDsWithoutTimestamp = append(g.DeviceIDsWithoutTimestamp, id)
				continue
			}
			g.Instances[id] = device.DeviceStats{
				Summary: statValueFromProto(d.GetSummary()), Stats: statObjectFromProto(d.GetStats()), Timestamp: d.GetTimestamp().AsTime(),
			}
		}
		slices.Sort(g.DeviceIDsWithoutTimestamp)
		s.Groups = append(s.Groups, g)
	}
	return s
}

func statObjectProto(o device.StatObject) *structspb.StatObject {
	p := &structspb.StatObject{
		Nested:     make(map[string]*structspb.StatObject, len(o.Nested)),
		Attributes: make(map[string]*structspb.StatValue, len(o.Attributes)),
	}
	for name, nested := range o.Nested {
		p.Nested[name] = statObjectProto(nested)
	}
	for name, v := range o.Attributes {
		p.Attributes[name] = statValueProto(v)
	}
	return p
}

func statObjectFromProto(p *structspb.StatObject) device.StatObject {
	var o device.StatObject
	if len(p.GetNested()) > 0 {
		o.Nested = make(map[string]device.StatObject, len(p.GetNested()))
	}
	for name, nested := range p.GetNested() {
		o.Nested[name] = statObjectFromProto(nested)
	}
	if len(p.GetAttributes()) > 0 {
		o.Attributes = make(map[string]device.StatValue, len(p.GetAttributes()))
	}
	for name, v := range p.GetAttributes() {
		o.Attributes[name] = statValueFromProto(v)
	}
	return o
}

// statValueProto converts a statistic that Validate has accepted.
func statValueProto(v device.StatValue) *structspb.StatValue {
	p := &structspb.StatValue{Unit: v.Unit, Desc: v.Description}
	switch value := v.Value.(type) {
	case float64:
		p.FloatNumeratorVal = wrapperspb.Double(value)
	case int64:
		p.IntNumeratorVal = wrapperspb.Int64(value)
	case int:
		p.IntNumeratorVal = wrapperspb.Int64(int64(value))
	case string:
		p.StringVal = wrapperspb.String(value)
	case bool:
		p.BoolVal = wrapperspb.Bool(value)
	}
	switch limit := v.Max.(type) {
	case float64:
		p.FloatDenominatorVal = wrapperspb.Double(limit)
	case int64:
		p.IntDenominatorVal = wrapperspb.Int64(limit)
	case int:
		p.IntDenominatorVal = wrapperspb.Int64(int64(limit))
	}
	return p
}

// statValueFromProto ignores a maximum if the message has no value of the same type.
func statValueFromProto(p *structspb.StatValue) device.StatValue {
	v := device.StatValue{Unit: p.GetUnit(), Description: p.GetDesc()}
	switch {
	case p.GetFloatNumeratorVal() != nil:
		v.Value = p.GetFloatNumeratorVal().GetValue()
		if p.GetFloatDenominatorVal() != nil {
			v.Max = p.GetFloatDenominatorVal().GetValue()
		}
	case p.GetIntNumeratorVal() != nil:
		v.Value = p.GetIntNumeratorVal().GetValue()
		if p.GetIntDenominatorVal() != nil {
			v.Max = p.GetIntDenominatorVal().GetValue()
		}
	case p.GetStringVal() != nil:
		v.Value = p.GetStringVal().GetValue()
	case p.GetBoolVal() != nil:
		v.Value = p.GetBoolVal().GetValue()
	}
	return v
}
