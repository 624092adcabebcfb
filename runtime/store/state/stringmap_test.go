package state

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// FuzzStringMap compares the encoding with go-msgpack's for a map without methods.
func FuzzStringMap(f *testing.F) {
	f.Add("", "", 0)
	f.Add("key", "value", 1)
	for _, n := range []int{15, 16, 31, 32, 255, 256, 65535, 65536} { // the lengths at which the header changes
		f.Add(strings.Repeat("k", n), strings.Repeat("v", n), 2)
		f.Add("k", "v", min(n, 300))
	}
	handle := &codec.MsgpackHandle{WriteExt: true}
	handle.Raw, handle.Canonical, handle.RawToString = true, true, true
	f.Fuzz(func(t *testing.T, key, value string, count int) {
		var m stringMap
		if count > 0 {
			m = stringMap{}
		}
		for i := range min(max(count-1, 0), 70000) {
			m[key+strings.Repeat("x", i%40)+string(rune(i))] = value
		}
		record := struct{ Env stringMap }{m}
		plain := struct{ Env map[string]string }{m}
		var got, want []byte
		if err := codec.NewEncoderBytes(&got, handle).Encode(record); err != nil {
			t.Fatal(err)
		}
		if err := codec.NewEncoderBytes(&want, handle).Encode(plain); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("encoded as\n%q, want\n%q", got, want)
		}
		record.Env = nil
		if err := codec.NewDecoderBytes(got, handle).Decode(&record); err != nil || !maps.Equal(record.Env, m) || (record.Env == nil) != (m == nil) {
			t.Fatalf("decoded as %v, %v, want %v", record.Env, err, m)
		}
	})
}
