package block

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

func decodeHex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type taskConfig struct {
	Command  string   `codec:"command"`
	Args     []string `codec:"args"`
	WorkDir  string   `codec:"work_dir"`
	OOMScore int      `codec:"oom_score_adj"`
	Env      map[string]string
}

func TestUnmarshal(t *testing.T) {
	type inner struct {
		X int `codec:"x"`
	}
	type embedded struct {
		E uint16 `codec:"e"`
	}
	type all struct {
		embedded
		I8     int8              `codec:"i8"`
		U      uint              `codec:"u"`
		F      float64           `codec:"f"`
		B      bool              `codec:"b"`
		S      string            `codec:"s"`
		P      *int              `codec:"p"`
		L      []int             `codec:"l"`
		M      map[string]string `codec:"m"`
		In     inner             `codec:"in"`
		Many   []inner           `codec:"many"`
		Any    any               `codec:"any"`
		Named  string
		JSON   string `json:"json"`
		Hidden string `codec:"-"`
	}
	one := 1
	tests := []struct {
		name string
		hex  string
		into all // the destination before decoding
		want all
	}{
		{"a tag", "81a173a178", all{}, all{S: "x"}},
		{"a field name", "81a54e616d6564a178", all{}, all{Named: "x"}},
		{"a field name in another case", "81a56e616d6564a178", all{}, all{}},
		{"no json tag", "81a46a736f6ea178", all{}, all{}},
		{"a hidden field", "81a648696464656ea178", all{}, all{}},
		{"an unknown key", "82a3787878d90178a173a178", all{}, all{S: "x"}},
		{"null resets", "86a173c0a170c0a175c0a16cc0a16dc0a3616e79c0",
			all{S: "x", P: &one, U: 1, L: []int{1}, M: map[string]string{"k": "v"}, Any: 1}, all{}},
		{"an absent key keeps", "80", all{S: "x"}, all{S: "x"}},
		{"str8", "81a173d90178", all{}, all{S: "x"}},
		{"raw16", "81a173da000178", all{}, all{S: "x"}},
		{"ints of any width", "83a26938d3ffffffffffffffffa175cd00ffa16c92cf0000000000000001d0ff", all{}, all{I8: -1, U: 255, L: []int{1, -1}}},
		{"an int for a float", "81a1660c", all{}, all{F: 12}},
		{"a float", "81a166cb3ff8000000000000", all{}, all{F: 1.5}},
		{"a map for an interface", "81a3616e7981a16b01", all{}, all{Any: map[string]any{"k": int64(1)}}},
		{"structs in structs", "82a2696e81a17801a46d616e799181a17802", all{}, all{In: inner{1}, Many: []inner{{2}}}},

		{"decimal text for a float", "81a166a3302e31", all{}, all{F: 0.1}},
		{"decimal text for an int", "81a175a3313030", all{}, all{U: 100}},
		{"decimal text for an int8", "81a26938a22d35", all{}, all{I8: -5}},
		{"decimal text deeper down", "83a16c92a13101a46d616e799181a178a137a165a139", all{}, all{embedded: embedded{9}, L: []int{1, 1}, Many: []inner{{7}}}},
		{"decimal text for a pointer", "81a170a131", all{}, all{P: &one}},
		{"a list of maps for a map", "81a16d9281a16ba17681a16ba177", all{}, all{M: map[string]string{"k": "w"}}},
		{"an empty list for a map", "81a16d90", all{}, all{M: map[string]string{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.into
			if err := hclspec.Unmarshal(decodeHex(t, tt.hex), &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// Drivers that were built with other libraries store their state in the newer dialect.
func TestUnmarshalStateAcceptsBothDialects(t *testing.T) {
	type state struct {
		Text  string `codec:"s"`
		Bytes []byte `codec:"b"`
	}
	long := strings.Repeat("78", 40)
	for name, hex := range map[string]string{
		"old: raw16":          "82a173da0028" + long + "a162a178",
		"new: str8 and bin8":  "82a173d928" + long + "a162c40178",
		"new: str16 and bin8": "82a173da0028" + long + "a162c40178",
	} {
		var got state
		if err := hclspec.UnmarshalState(decodeHex(t, hex), &got); err != nil || got.Text != strings.Repeat("x", 40) || string(got.Bytes) != "x" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestUnmarshalErrors(t *testing.T) {
	type all struct {
		I8 int8    `codec:"i8"`
		U  uint    `codec:"u"`
		I  int     `codec:"i"`
		F  float64 `codec:"f"`
		B  bool    `codec:"b"`
		S  string  `codec:"s"`
	}
	tests := []struct{ name, hex, want string }{
		{"a float for an int", "81a169cb3ff8000000000000", "msgpack decode error [pos 4]: "},
		{"a number for a string", "81a173cd0100", "invalid byte descriptor for decoding bytes, got: 0xcd"},
		{"an int for a bool", "81a16205", "cannot decode bool: "},
		{"a string for an int", "81a169a3616263", "cannot decode signed integer: unrecognized descriptor byte: a3/string|bytes"},
		{"a string for a float", "81a166a3616263", "unrecognized descriptor byte"},
		{"a negative for an unsigned", "81a175ff", "assigning negative signed value"},
		{"too much for an int8", "81a26938cd0100", "overflow"},
		{"half of it", "82a173a178", "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got all
			err := hclspec.Unmarshal(decodeHex(t, tt.hex), &got)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		var got all
		for _, b := range [][]byte{nil, {}} {
			if err := hclspec.Unmarshal(b, &got); !errors.Is(err, io.EOF) {
				t.Errorf("got error %v, want EOF", err)
			}
			if err := hclspec.UnmarshalState(b, &got); !errors.Is(err, io.EOF) {
				t.Errorf("state: got error %v, want EOF", err)
			}
		}
	})
	t.Run("nesting without end", func(t *testing.T) {
		var got any
		if err := hclspec.Unmarshal([]byte(strings.Repeat("\x91", 1<<20)), &got); err == nil {
			t.Error("it was accepted")
		}
	})
}

// TestConfigRoundTrip decodes a config block, encodes the result and decodes it into a
// driver's struct.
func TestConfigRoundTrip(t *testing.T) {
	s := hclspec.Object(map[string]*hclspec.Spec{
		"command":       hclspec.Attr("", "string", true),
		"args":          hclspec.Attr("", "list(string)", false),
		"work_dir":      hclspec.Attr("", "string", false),
		"oom_score_adj": hclspec.Attr("", "number", false),
		"Env":           hclspec.Attr("env", "list(map(string))", false),
	})
	value, diags := Decode(s, parseConfig(t, `{"command":"/bin/${FOO}","args":[1],"env":[{"A":"1"},{"B":"2"}]}`), varsFunc(nomadVars))
	if diags.HasErrors() {
		t.Fatal(Messages(diags))
	}
	b, err := Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var got taskConfig
	if err := hclspec.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	want := taskConfig{Command: "/bin/foo", Args: []string{"1"}, Env: map[string]string{"A": "1", "B": "2"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMarshalRefusesTheUnknown(t *testing.T) {
	_, err := Marshal(cty.ObjectVal(map[string]cty.Value{"x": cty.UnknownVal(cty.String)}))
	if got, want := fmt.Sprint(err), `"x": the value is not known`; got != want {
		t.Errorf("got error %s, want %s", got, want)
	}
}

type namedState struct {
	Pid  int
	Name string
}

type innerState struct{ X int }

type taggedState struct {
	A      int        `codec:"a,omitempty"`
	B      string     `codec:"b"`
	C      *int       // C stays nil
	E      innerState // E's name sorts by case
	hidden int
	Not    int `codec:"-"`
}

// TestStateEncoding compares encoded driver states with fixed bytes: later versions must
// decode them.
func TestStateEncoding(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"a struct", namedState{42, "x"}, "82a44e616d65a178a35069642a"},
		{"as Nomad's drivers send it", namedState{2182, "x"}, "82a44e616d65a178a3506964d10886"},
		{"tags and holes", taggedState{B: "x", hidden: 1, Not: 1}, "83a143c0a14581a15800a162a178"},
		{"bytes", []byte{1, 2, 3}, "a3010203"},
		{"a time", time.Unix(0, 0).UTC(), "af010000000e7791f70000000000ffff"},
		{"a duration", 5 * time.Second, "d3000000012a05f200"},
		{"a signed number", 300, "d1012c"},
		{"an unsigned number", uint(300), "cd012c"},
		{"a long string", strings.Repeat("a", 40), "da0028" + strings.Repeat("61", 40)},
		{"long bytes", make([]byte, 40), "da0028" + strings.Repeat("00", 40)},
		{"float64", 1.5, "cb3ff8000000000000"},
		{"float32", float32(1.5), "ca3fc00000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := hclspec.MarshalState(tt.value)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(b); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestStateRoundTrip(t *testing.T) {
	type roundTripState struct {
		Pid     int
		Start   time.Time
		Timeout time.Duration
		Raw     []byte
		Labels  map[string]string
		Deep    *namedState
	}
	want := roundTripState{7, time.Date(2024, 5, 6, 7, 8, 9, 10, time.UTC), time.Hour, []byte{0xff, 0}, map[string]string{"a": "b"}, &namedState{1, "n"}}
	b, err := hclspec.MarshalState(&want)
	if err != nil {
		t.Fatal(err)
	}
	var got roundTripState
	if err := hclspec.UnmarshalState(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestUnmarshalJSON(t *testing.T) {
	type jsonConfig struct {
		Name  string            `codec:"name"`
		Big   int64             `codec:"big"`
		Ratio float64           `codec:"ratio"`
		Many  []int             `codec:"many"`
		Env   map[string]string `codec:"env"`
		Any   any               `codec:"any"`
		Kept  string            `codec:"kept"`
	}
	got := jsonConfig{Kept: "as it was"}
	text := `{"name":"a","big":9007199254740993,"ratio":0.5,"many":[1,2],"env":[{"A":"1"},{"B":"2"}],"any":{"n":3}}`
	if err := hclspec.UnmarshalJSON([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := jsonConfig{"a", 9007199254740993, 0.5, []int{1, 2}, map[string]string{"A": "1", "B": "2"}, map[string]any{"n": int64(3)}, "as it was"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, text := range []string{``, `{`, `{"big":"much"}`, `{"big":1e99}`, `{"unknown":true}`} {
		if err := hclspec.UnmarshalJSON([]byte(text), &got); err == nil {
			t.Errorf("%q is no error, and makes %+v", text, got)
		}
	}
}
