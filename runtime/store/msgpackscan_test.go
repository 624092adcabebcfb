package store

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"
)

// TestValueReader checks that a valueReader finds the end of each kind of value, and fails for each incomplete value.
func TestValueReader(t *testing.T) {
	t.Parallel()
	list := func(n int) []any { return make([]any, n) }
	values := []any{
		nil, true, false, 0, 127, 128, -1, -32, -33, 255, 256, -129, 65535, 65536, -32769, math.MaxInt32 + 1, math.MinInt32 - 1, int64(math.MinInt64), int64(math.MaxInt64),
		float32(1.5), 1.5, "", strings.Repeat("x", 31), strings.Repeat("x", 32), strings.Repeat("x", 256), strings.Repeat("x", 65536),
		[]byte{}, []byte("x"), bytes.Repeat([]byte("x"), 256), bytes.Repeat([]byte("x"), 65536), time.Unix(1, 0), time.Unix(1, 1), time.Unix(1<<40, 1),
		list(0), list(15), list(16), list(65536), map[string]any{}, map[string]any{"a": list(2), "b": map[string]any{"c": 1}},
	}
	if n, ok := intContent([]byte{0xcf, 0xff, 0, 0, 0, 0, 0, 0, 0}); ok {
		t.Errorf("an integer above the largest int64 is read as %d", n)
	}
	big := make(map[string]any)
	for i := range 70000 {
		big[time.Duration(i).String()] = i
	}
	small := map[string]any{}
	for i := range 16 {
		small[time.Duration(i).String()] = i
	}
	for _, v := range append(values, small, big) {
		encoded, err := encodeMsgpack(v)
		if err != nil {
			t.Fatal(err)
		}
		r := valueReader{rest: append(bytes.Clone(encoded), "rest"...)}
		if got := r.next(); !bytes.Equal(got, encoded) || string(r.rest) != "rest" || r.err != nil {
			t.Errorf("%.60v: %d bytes of %d, %v", v, len(got), len(encoded), r.err)
		}
		for _, n := range []int{0, 1, len(encoded) / 2, len(encoded) - 1} {
			if n >= len(encoded) {
				continue
			}
			r := valueReader{rest: encoded[:n]}
			if got := r.next(); got != nil || r.err == nil || len(r.rest) > 0 {
				t.Errorf("%.60v: %d of %d bytes are read as %d", v, n, len(encoded), len(got))
			}
		}
		want, isString := v.(string)
		if got, ok := stringContent(encoded); ok != isString || string(got) != want {
			t.Errorf("%.60v: string %.60q, %t", v, got, ok)
		}
		var wantInt int64
		isInt := decodeMsgpackWith(&decoders, encoded, &wantInt) == nil
		if _, isFloat := v.(float64); isFloat || v == nil || v == float32(1.5) {
			isInt = false
		}
		if got, ok := intContent(encoded); ok != isInt || ok && got != wantInt {
			t.Errorf("%.60v: integer %d, %t, want %d, %t", v, got, ok, wantInt, isInt)
		}
		r = valueReader{rest: encoded}
		size := r.mapSize()
		m, isMap := v.(map[string]any)
		if (r.err == nil) != isMap || size != len(m) {
			t.Errorf("%.60v: map of %d, %v", v, size, r.err)
		}
		r = valueReader{rest: encoded}
		size = r.listSize()
		l, isList := v.([]any)
		if (r.err == nil) != isList || size != len(l) {
			t.Errorf("%.60v: list of %d, %v", v, size, r.err)
		}
	}
}

// FuzzValueReader checks that a valueReader reads all bytes, or fails.
func FuzzValueReader(f *testing.F) {
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1})
	f.Add([]byte{0xc1})
	f.Add([]byte{0xc6, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := valueReader{rest: b}
		var read []byte
		for len(r.rest) > 0 {
			read = append(read, r.next()...)
		}
		if r.err == nil && !bytes.Equal(read, b) || !bytes.HasPrefix(b, read) {
			t.Errorf("%x is read as %x, %v", b, read, r.err)
		}
		for _, size := range []func(*valueReader) int{(*valueReader).mapSize, (*valueReader).listSize} {
			if r := (valueReader{rest: b}); size(&r) > len(b) {
				t.Errorf("%x: too many elements", b)
			}
		}
	})
}
