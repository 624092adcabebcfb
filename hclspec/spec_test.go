package hclspec

import (
	"encoding/hex"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
)

// TestSpecWireEncoding compares an encoded Spec with fixed bytes: the encoding is part of
// the protocol.
func TestSpecWireEncoding(t *testing.T) {
	s := Object(map[string]*Spec{"greeting": Default(Attr("greeting", "string", false), Literal(`"hi"`))})
	b, err := proto.Marshal(s.Proto())
	if err != nil {
		t.Fatal(err)
	}
	const want = "0a300a2e0a086772656574696e6712224a200a141a120a086772656574696e671206737472696e67120852060a0422686922"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// fullSpec uses each kind of spec with each of its fields.
var fullSpec = Object(map[string]*Spec{
	"attr":  Attr("attr", "string", true),
	"array": Array(Attr("a", "string", false), Literal("1")),
	"block": Block("block", Object(nil), true),
	"attrs": BlockAttrs("attrs", "number", true),
	"list":  BlockList("list", Attr("b", "bool", false), 1, 2),
	"set":   BlockSet("set", Attr("c", "bool", false), 3, 4),
	"map":   BlockMap("map", []string{"one", "two"}, Attr("d", "bool", false)),
	"def":   Default(Attr("e", "string", false), Literal(`"x"`)),
})

func TestProtoRoundTrip(t *testing.T) {
	for name, s := range map[string]*Spec{"everything": fullSpec, "nothing": nil, "no kind": {}} {
		t.Run(name, func(t *testing.T) {
			back, err := FromProto(s.Proto())
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(back.Proto(), s.Proto()) {
				t.Errorf("got %v, want %v", back.Proto(), s.Proto())
			}
			if (back == nil) != (s == nil) {
				t.Errorf("got %v, want %v", back, s)
			}
		})
	}
}

func TestFromProtoWithMissingFields(t *testing.T) {
	// Some plugins send a Spec with a kind and without its content.
	for _, block := range []*specpb.Spec{
		{Block: &specpb.Spec_Object{}},
		{Block: &specpb.Spec_Array{}},
		{Block: &specpb.Spec_Attr{}},
		{Block: &specpb.Spec_BlockValue{}},
		{Block: &specpb.Spec_BlockAttrs{}},
		{Block: &specpb.Spec_BlockList{}},
		{Block: &specpb.Spec_BlockSet{}},
		{Block: &specpb.Spec_BlockMap{}},
		{Block: &specpb.Spec_Default{}},
		{Block: &specpb.Spec_Literal{}},
		{Block: &specpb.Spec_Object{Object: &specpb.Object{Attributes: map[string]*specpb.Spec{"x": nil}}}},
		{Block: &specpb.Spec_Array{Array: &specpb.Array{Values: []*specpb.Spec{nil}}}},
	} {
		s, err := FromProto(block)
		if err != nil {
			t.Errorf("%v: %v", block, err)
		}
		s.Proto()
	}
}

func TestFromProtoRefusesDeepSpecs(t *testing.T) {
	deep := func(levels int) *specpb.Spec {
		s := Literal("1")
		for range levels - 1 {
			s = Block("b", s, false)
		}
		return s.Proto()
	}
	if _, err := FromProto(deep(MaxDepth)); err != nil {
		t.Errorf("%d levels: %v", MaxDepth, err)
	}
	_, err := FromProto(deep(MaxDepth + 1))
	if err == nil || !strings.Contains(err.Error(), "nested deeper than 100 levels") {
		t.Errorf("%d levels: got error %v", MaxDepth+1, err)
	}
}
