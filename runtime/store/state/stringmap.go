package state

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// stringMap is a map that encodes itself, sorted by key. go-msgpack encodes a map by reflection, which allocates three objects
// per entry, and an environment with 55 variables is encoded at each start and stop. The encoding is the same.
type stringMap map[string]string

var _ codec.Selfer = (*stringMap)(nil)

// CodecEncodeSelf implements codec.Selfer.
func (m stringMap) CodecEncodeSelf(e *codec.Encoder) {
	if m == nil {
		e.MustEncode(nil)
		return
	}
	size := msgpackMaxHeader
	for k, v := range m {
		size += 2*msgpackMaxHeader + len(k) + len(v)
	}
	b := appendMsgpackHeader(make([]byte, 0, size), len(m), msgpackMapHeaders)
	keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	for _, k := range keys {
		b = append(appendMsgpackHeader(b, len(k), msgpackStringHeaders), k...)
		b = append(appendMsgpackHeader(b, len(m[k]), msgpackStringHeaders), m[k]...)
	}
	e.MustEncode(codec.Raw(b))
}

// CodecDecodeSelf implements codec.Selfer.
func (m *stringMap) CodecDecodeSelf(d *codec.Decoder) { d.MustDecode((*map[string]string)(m)) }

// msgpackHeaders are the first bytes of a value with a length: see the MessagePack specification, "Map format family" and "str
// format family".
type msgpackHeaders struct {
	fix, fixMax         byte // the length is in the first byte up to fixMax
	oneByte             byte // 0 if the type has no such form
	twoBytes, fourBytes byte
}

var (
	msgpackMapHeaders    = msgpackHeaders{fix: 0x80, fixMax: 15, twoBytes: 0xde, fourBytes: 0xdf}
	msgpackStringHeaders = msgpackHeaders{fix: 0xa0, fixMax: 31, oneByte: 0xd9, twoBytes: 0xda, fourBytes: 0xdb}
)

const msgpackMaxHeader = 5 // bytes

func appendMsgpackHeader(b []byte, length int, h msgpackHeaders) []byte {
	switch {
	case length <= int(h.fixMax):
		return append(b, h.fix|byte(length))
	case length <= math.MaxUint8 && h.oneByte != 0:
		return append(b, h.oneByte, byte(length))
	case length <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, h.twoBytes), uint16(length))
	}
	return binary.BigEndian.AppendUint32(append(b, h.fourBytes), uint32(length))
}
