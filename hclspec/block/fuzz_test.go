package block

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/specpb"
	"github.com/nomad-lite/nomad-lite/hclspec/specwire"
)

// FuzzConfig checks that Decode returns, for any spec and config, either errors or a value
// that can be encoded and decoded.
func FuzzConfig(f *testing.F) {
	for _, s := range []*hclspec.Spec{greetingSpec, numberSpec, execSpec, defaultsSpec, blocksSpec, typesSpec, job} {
		b, err := proto.Marshal(specwire.Proto(s))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte(`{"n":1.5,"gc":[{"delay":"${FOO}"}],"bm":[{"one":[{"v":1}]},{"two":[{"v":2}]}]}`))
	}
	f.Fuzz(func(t *testing.T, spec, text []byte) {
		p := &specpb.Spec{}
		if proto.Unmarshal(spec, p) != nil {
			return
		}
		s, err := specwire.FromProto(p)
		if err != nil {
			return
		}
		if back, err := specwire.FromProto(specwire.Proto(s)); err != nil || !proto.Equal(specwire.Proto(back), specwire.Proto(s)) {
			t.Fatalf("%v became %v, %v", specwire.Proto(s), specwire.Proto(back), err)
		}
		var config map[string]any
		if json.Unmarshal(text, &config) != nil {
			return
		}
		value, diags := Decode(s, config, varsFunc(nomadVars))
		if diags.HasErrors() {
			if len(Messages(diags)) == 0 {
				t.Fatal("an error without a message")
			}
			return
		}
		b, err := Marshal(value)
		if err != nil {
			return
		}
		back, err := ctymsgpack.Unmarshal(b, value.Type())
		if err != nil {
			t.Fatalf("%#v does not come back: %v", value, err)
		}
		if again, err := Marshal(back); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x became %x, %v", b, again, err)
		}
		var untypedValue any
		if err := hclspec.Unmarshal(b, &untypedValue); err != nil && value.Type() != cty.DynamicPseudoType {
			t.Fatalf("a driver cannot read %x: %v", b, err)
		}
	})
}

// FuzzUnmarshal checks that Unmarshal does not panic for any bytes, and that a decoded
// value can be encoded and decoded again.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte("\x82\xa7command\xa1x\xa4args\x91\xa11"))
	f.Add([]byte("\x81\xadoom_score_adj\xa3100"))
	f.Add([]byte("\x81\xa3Env\x92\x81\xa1k\xa1v\x80"))
	f.Add([]byte("\xdd\xff\xff\xff\xff"))
	f.Add([]byte("\xdf\xff\xff\xff\xff"))
	f.Add([]byte("\xdb\xff\xff\xff\xff"))
	type all struct {
		taskConfig
		U8   uint8                  `codec:"u8"`
		F    float64                `codec:"f"`
		B    *bool                  `codec:"b"`
		Any  any                    `codec:"any"`
		Deep map[string]fuzzElement `codec:"deep"`
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got all
		if hclspec.Unmarshal(b, &got) == nil {
			if _, err := hclspec.MarshalState(got); err != nil {
				t.Fatal(err)
			}
		}
		var state fuzzState
		if hclspec.UnmarshalState(b, &state) != nil {
			return
		}
		b, err := hclspec.MarshalState(state)
		if err != nil {
			t.Fatal(err)
		}
		var decodedAgain fuzzState
		if err := hclspec.UnmarshalState(b, &decodedAgain); err != nil || !reflect.DeepEqual(decodedAgain, state) {
			t.Fatalf("%+v became %+v, %v", state, decodedAgain, err)
		}
	})
}

type fuzzElement struct {
	List []map[string]string `codec:"list"`
	N    int64               `codec:"n"`
}

type fuzzState struct {
	Pid     int
	Started int64
	Timeout time.Duration
	Name    string
	Labels  map[string]string
	Args    []string
}
