package devicewire

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/proto/devicepb"
)

// FuzzMessages checks that any message can be decoded and validated, and that encoding a valid
// message and decoding it again yields the same value.
func FuzzMessages(f *testing.F) {
	fingerprint, err := fingerprintProto(device.Fingerprint{Groups: []device.Group{{
		ID: device.GroupID{Vendor: "v", Type: "t", Name: "n"}, Devices: []device.Device{{ID: "1", PCIBusID: "0"}}, Attributes: map[string]device.Attribute{"a": {Value: 1, Unit: "GiB"}},
	}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []proto.Message{
		fingerprint,
		reservationProto(&device.Reservation{Env: map[string]string{"A": "1"}, Mounts: []device.Mount{{TaskPath: "/a", HostPath: "/b"}}, Devices: []device.HostDevice{{TaskPath: "/a", HostPath: "/b"}}}),
		timestampedStatsProto(device.Stats{Groups: []device.GroupStats{{ID: device.GroupID{Vendor: "v", Type: "t", Name: "n"}, Instances: map[string]device.DeviceStats{"1": {
			Summary: device.StatValue{Value: 1, Max: 2}, Stats: device.StatObject{Nested: map[string]device.StatObject{"x": {Attributes: map[string]device.StatValue{"y": {Value: 1.5}}}}},
		}}}}}),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkRoundTripIsStable(t, b, &devicepb.FingerprintResponse{}, func(p *devicepb.FingerprintResponse) (*devicepb.FingerprintResponse, bool) {
			f := fingerprintFromProto(p)
			if f.Validate() != nil {
				return nil, false
			}
			p, err := fingerprintProto(f)
			if err != nil {
				t.Fatal(err)
			}
			return p, true
		})
		checkRoundTripIsStable(t, b, &devicepb.ContainerReservation{}, func(p *devicepb.ContainerReservation) (*devicepb.ContainerReservation, bool) {
			r := reservationFromProto(p)
			return reservationProto(r), r.Validate() == nil
		})
		checkRoundTripIsStable(t, b, &devicepb.StatsResponse{}, func(p *devicepb.StatsResponse) (*devicepb.StatsResponse, bool) {
			s := timestampedStatsFromProto(p)
			return timestampedStatsProto(s), s.Validate() == nil
		})
	})
}

// checkRoundTripIsStable decodes and encodes a message twice, and checks that both
// encodings are equal. The function again returns false for an invalid message.
func checkRoundTripIsStable[M proto.Message](t *testing.T, b []byte, m M, again func(M) (M, bool)) {
	t.Helper()
	if proto.Unmarshal(b, m) != nil {
		return
	}
	encode := func(m M) []byte {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, valid := again(m)
	if !valid {
		return
	}
	once := encode(first)
	if err := proto.Unmarshal(once, m); err != nil {
		t.Fatal(err)
	}
	second, valid := again(m)
	if !valid {
		t.Fatalf("%v is invalid after a round trip", first)
	}
	if twice := encode(second); !bytes.Equal(once, twice) {
		t.Fatalf("once:  %x\ntwice: %x", once, twice)
	}
}
