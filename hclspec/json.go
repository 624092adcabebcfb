package hclspec

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
)

var _ json.Marshaler = (*Spec)(nil)

// MarshalJSON returns the message for s in the JSON form of protocol buffers, with the field names of the .proto
// file. A nil Spec is null.
func (s *Spec) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(s.Proto())
}

// FromJSON returns the Spec whose MarshalJSON is text. Like FromProto, it leaves most errors to Decode. The Spec of
// null is nil.
func FromJSON(text []byte) (*Spec, error) {
	if string(text) == "null" {
		return nil, nil
	}
	var message specpb.Spec
	if err := protojson.Unmarshal(text, &message); err != nil {
		return nil, err
	}
	return FromProto(&message)
}
