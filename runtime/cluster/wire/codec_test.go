package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

type queryOptions struct {
	AllowStale    bool
	AuthToken     string
	Filter        string
	Forwarded     bool
	MaxQueryTime  time.Duration
	MinQueryIndex uint64
	Namespace     string
	NextToken     string
	PerPage       int32
	Prefix        string
	Region        string
	Reverse       bool
}

type embeddingRequest struct {
	NodeID string
	queryOptions2
}

type queryOptions2 struct{ Region string }

func TestEncodeWritesTheBytesOfNomad(t *testing.T) {
	const secret = "65890b40-ad34-158c-5f7d-d8cbd280c626"
	started := time.Date(2026, 11, 20, 17, 43, 2, 428735349, time.UTC)
	for _, test := range []struct {
		name  string
		value any
		want  string // hexadecimal; spaces are ignored, text in quotes is written as such
	}{
		{"request header", &requestHeader{"Status.Ping", 1}, `82 a3"Seq" 01 ad"ServiceMethod" ab"Status.Ping"`},
		{"response header", &responseHeader{"Status.Ping", 1, ""}, `83 a5"Error" a0 a3"Seq" 01 ad"ServiceMethod" ab"Status.Ping"`},
		{"empty body", struct{}{}, `80`},
		{"request body", &queryOptions{AuthToken: secret}, `8c aa"AllowStale" c2 a9"AuthToken" da0024"` + secret + `" a6"Filter" a0 a9"Forwarded" c2 ac"MaxQueryTime" 00 ad"MinQueryIndex" 00 a9"Namespace" a0 a9"NextToken" a0 a7"PerPage" 00 a6"Prefix" a0 a6"Region" a0 a7"Reverse" c2`},
		{"duration", 17745631120 * time.Nanosecond, `d3 00000004 21b8d790`},
		{"time", started, `af 01 0000000e e2927da6 198dfb75 ffff`},
		{"zero time", time.Time{}, `af 01 0000000000000000 00000000 ffff`},
		{"bytes", []byte("abc\n"), `a4"abc` + "\n" + `"`},
		{"long bytes", bytes.Repeat([]byte("x"), 40), `da0028"` + strings.Repeat("x", 40) + `"`},
		{"nil map", map[string]string(nil), `c0`},
		{"empty list", []string{}, `90`},
		{"nil pointer to a time", struct{ T *time.Time }{}, `81 a1"T" c0`},
		{"bytes of a topology", []uint8{0}, `a1 00`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := EncodeBytes(test.value)
			if err != nil {
				t.Fatal(err)
			}
			if want := parseBytes(t, test.want); !bytes.Equal(got, want) {
				t.Errorf("got  %x\nwant %x", got, want)
			}
		})
	}
}

// parseBytes parses hexadecimal digits with text in quotes between them.
func parseBytes(t *testing.T, text string) []byte {
	t.Helper()
	var all []byte
	for i, part := range strings.Split(text, `"`) {
		if i%2 == 1 {
			all = append(all, part...)
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(part, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

func TestFieldsOfEmbeddedStructsAreKeysOfTheOuterMap(t *testing.T) {
	encoded, err := EncodeBytes(&embeddingRequest{"n", queryOptions2{"global"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := parseBytes(t, `82 a6"NodeID" a1"n" a6"Region" a6"global"`); !bytes.Equal(encoded, want) {
		t.Errorf("got %x, want %x", encoded, want)
	}
}

func TestDecoderReadsMessagesThatArriveTogether(t *testing.T) {
	var stream bytes.Buffer
	encoder := NewEncoder(&stream)
	if err := encoder.Encode(&requestHeader{"A", 1}, "second", &requestHeader{"C", 3}); err != nil {
		t.Fatal(err)
	}
	// A reader that returns one byte at a time is a stream's other extreme.
	for name, in := range map[string]io.Reader{"together": bytes.NewReader(stream.Bytes()), "in bytes": oneByteReader{bytes.NewReader(stream.Bytes())}} {
		t.Run(name, func(t *testing.T) {
			decoder := NewDecoder(in)
			var first, third requestHeader
			if err := errors.Join(decoder.Decode(&first), decoder.Decode(nil), decoder.Decode(&third)); err != nil {
				t.Fatal(err)
			}
			if first != (requestHeader{"A", 1}) || third != (requestHeader{"C", 3}) {
				t.Errorf("got %v and %v", first, third)
			}
			if err := decoder.Decode(&first); err != io.EOF {
				t.Errorf("at the end: got %v, want io.EOF", err)
			}
		})
	}
}

type oneByteReader struct{ in io.Reader }

func (r oneByteReader) Read(b []byte) (int, error) { return r.in.Read(b[:1]) }

func TestHostileMessagesAreErrors(t *testing.T) {
	for _, test := range []struct {
		name, message string
	}{
		{"string of 4 GiB", `81 a3"Seq" dbffffffff`},
		{"unknown string of 4 GiB", `81 a1"x" dbffffffff`},
		{"list of 4 Gi entries", `81 a1"x" ddffffffff`},
		{"map of 4 Gi entries", `dfffffffff`},
		{"extension of 4 GiB", `81 a1"x" c9ffffffff 05`},
		{"bin of 4 GiB", `81 a1"x" c6ffffffff`},
		{"deep lists", `81 a1"x"` + strings.Repeat("91", 1000)},
		{"deep maps", strings.Repeat(`81 a1"x"`, 1000)},
		{"truncated", `82 a3"Seq"`},
		{"number as key", `81 01 02`},
		{"unused code", `c1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			message := parseBytes(t, test.message)
			for name, dst := range map[string]any{"header": &requestHeader{}, "dropped": nil, "untyped": new(any)} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				err := NewDecoder(bytes.NewReader(message)).Decode(dst)
				runtime.ReadMemStats(&after)
				if err == nil && test.name != "number as key" {
					t.Errorf("%s: no error", name)
				}
				if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 16<<20 {
					t.Errorf("%s: allocated %d bytes for a message of %d bytes", name, allocated, len(message))
				}
			}
		})
	}
}

func TestMessageAboveTheLimitIsAnError(t *testing.T) {
	message := io.MultiReader(bytes.NewReader([]byte{0xdb, 0x7f, 0xff, 0xff, 0xff}), zeroReader{})
	decoder := newDecoder(message, limits{bytes: 1 << 20, values: 1})
	if err := decoder.Decode(new(string)); !errors.Is(err, ErrMessageTooLarge) {
		t.Errorf("got %v, want %v", err, ErrMessageTooLarge)
	}
}

// A one-byte empty map becomes a struct with hundreds of bytes.
func TestManySmallValuesAreAnError(t *testing.T) {
	message := func(values int) io.Reader {
		head := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(values-1)) // the list is a value, too
		return io.MultiReader(bytes.NewReader(head), bytes.NewReader(bytes.Repeat([]byte{0x80}, values-1)))
	}
	var headers []requestHeader
	if err := NewDecoder(message(responseLimits.values + 1)).Decode(&headers); !errors.Is(err, ErrMessageTooLarge) {
		t.Errorf("above the limit: got %v, want %v", err, ErrMessageTooLarge)
	}
	if err := NewDecoder(message(responseLimits.values)).Decode(&headers); err != nil || len(headers) != responseLimits.values-1 {
		t.Errorf("at the limit: got %d values, %v", len(headers), err)
	}
}

// The decoder finds each message's end.
func TestDecoderReadsEachKindOfValue(t *testing.T) {
	for _, message := range []string{
		"c0", "c2", "c3", "7f", "ff", "cc ff", "cd ffff", "ce ffffffff", "cf ffffffffffffffff", "d0 ff", "d1 ffff", "d2 ffffffff", "d3 ffffffffffffffff",
		"ca 3f800000", "cb 3ff0000000000000", `a1"x"`, `d9 01"x"`, `da 0001"x"`, `db 00000001"x"`, "c4 01 ff", "c5 0001 ff", "c6 00000001 ff",
		"d4 07 ff", "d5 07 ffff", "d6 07 ffffffff", "d7 07 ffffffffffffffff", "d8 07 ffffffffffffffffffffffffffffffff",
		"c7 01 07 ff", "c8 0001 07 ff", "c9 00000001 07 ff",
		"92 01 02", "dc 0002 01 02", "dd 00000002 01 02", `81 a1"x" 01`, `de 0001 a1"x" 01`, `df 00000001 a1"x" 01`, `81 a1"x" 92 80 90`,
	} {
		t.Run(message, func(t *testing.T) {
			decoder := NewDecoder(bytes.NewReader(append(parseBytes(t, message), 0x2a)))
			if err := decoder.Decode(nil); err != nil {
				t.Fatal(err)
			}
			var next int
			if err := decoder.Decode(&next); err != nil || next != 42 {
				t.Errorf("the next message is %d, %v; want 42", next, err)
			}
		})
	}
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { return len(b), nil }

func FuzzDecode(f *testing.F) {
	f.Add(parseTestBytes(`82 a3"Seq" 01 ad"ServiceMethod" ab"Status.Ping"`))
	f.Add(parseTestBytes(`af 01 0000000000000000 00000000 ffff`))
	f.Fuzz(func(t *testing.T, message []byte) {
		decoder := NewDecoder(bytes.NewReader(message))
		for range 10 {
			var v any
			if err := decoder.Decode(&v); err != nil {
				return
			}
			if _, err := EncodeBytes(v); err != nil {
				t.Fatalf("%v cannot be encoded again: %v", v, err)
			}
		}
	})
}

func parseTestBytes(text string) []byte { return parseBytes(&testing.T{}, text) }
