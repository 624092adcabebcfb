package specwire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
)

// TestSpecWireEncoding compares an encoded Spec with fixed bytes: the encoding is part of
// the protocol.
func TestSpecWireEncoding(t *testing.T) {
	s := hclspec.Object(map[string]*hclspec.Spec{"greeting": hclspec.Default(hclspec.Attr("greeting", "string", false), hclspec.Literal(`"hi"`))})
	b, err := proto.Marshal(Proto(s))
	if err != nil {
		t.Fatal(err)
	}
	const want = "0a300a2e0a086772656574696e6712224a200a141a120a086772656574696e671206737472696e67120852060a0422686922"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// goldenSpecs returns the JSON of specs of each kind.
func goldenSpecs(t testing.TB) (texts []string) {
	t.Helper()
	golden, err := os.ReadFile("../testdata/json.golden")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(golden)) {
		if !strings.HasPrefix(line, "#") {
			texts = append(texts, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(texts) < 30 {
		t.Fatalf("%d specs", len(texts))
	}
	return texts
}

func TestProtoRoundTrip(t *testing.T) {
	for _, text := range goldenSpecs(t) {
		s, err := hclspec.FromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		back, err := FromProto(Proto(s))
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(back)
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) || (back == nil) != (s == nil) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestJSONIsThatOfTheMessage compares the JSON of specs with the JSON that package protojson writes for their messages.
func TestJSONIsThatOfTheMessage(t *testing.T) {
	for _, text := range goldenSpecs(t) {
		if text == "null" {
			continue
		}
		s, err := hclspec.FromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		message, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(Proto(s))
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		if err := json.Compact(&want, message); err != nil { // package protojson writes random white space
			t.Fatal(err)
		}
		got, err := s.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want.Bytes()) || string(got) != text {
			t.Errorf("got %s, want %s", got, want.Bytes())
		}
	}
}

// FuzzFromJSON checks that FromJSON accepts what package protojson accepts, with the same result.
func FuzzFromJSON(f *testing.F) {
	for _, text := range goldenSpecs(f) {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"blockList": {"minItems": 1.0e1, "maxItems": "2", "nested": null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		message := &specpb.Spec{}
		if protojson.Unmarshal(text, message) != nil {
			_, _ = hclspec.FromJSON(text) // must not panic
			return
		}
		want, wantErr := FromProto(message)
		s, err := hclspec.FromJSON(text)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("got the error %v, want %v", err, wantErr)
		}
		if err == nil && !proto.Equal(Proto(s), Proto(want)) {
			t.Errorf("got %v, want %v", Proto(s), Proto(want))
		}
	})
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
		Proto(s)
	}
}

func TestFromProtoRefusesDeepSpecs(t *testing.T) {
	deep := func(levels int) *specpb.Spec {
		s := hclspec.Literal("1")
		for range levels - 1 {
			s = hclspec.Block("b", s, false)
		}
		return Proto(s)
	}
	if _, err := FromProto(deep(hclspec.MaxDepth)); err != nil {
		t.Errorf("%d levels: %v", hclspec.MaxDepth, err)
	}
	_, err := FromProto(deep(hclspec.MaxDepth + 1))
	if err == nil || !strings.Contains(err.Error(), "nested deeper than 100 levels") {
		t.Errorf("%d levels: got error %v", hclspec.MaxDepth+1, err)
	}
}
