package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
)

// recorder keeps the bytes of each stream between nodes and a server without TLS.
type recorder struct {
	t testing.TB

	mu    sync.Mutex
	tapes []*tape
}

// tape has the bytes of the streams of a connection.
type tape struct {
	mu      sync.Mutex
	streams map[uint32]*[2][]byte // by id: the bytes of the node, and of the server
}

// The two directions of a connection, as indexes of tape.streams.
const (
	fromNode = iota
	fromServer
)

// proxy starts a proxy in front of a server, and returns its address.
func (r *recorder) proxy(serverAddr string) string {
	return startProxy(r.t, serverAddr, func() (client, server io.Writer) {
		recorded := &tape{streams: map[uint32]*[2][]byte{}}
		r.mu.Lock()
		r.tapes = append(r.tapes, recorded)
		r.mu.Unlock()
		// The first byte of a connection precedes the frames.
		return &frameSplitter{tape: recorded, direction: fromNode, skip: 1}, &frameSplitter{tape: recorded, direction: fromServer}
	})
}

// frameSplitter adds the bytes of one direction of a connection, which it gets as frames of yamux, to a tape.
type frameSplitter struct {
	tape      *tape
	direction int
	skip      int // bytes before the first frame
	pending   []byte
}

// frameHeaderBytes is the length of a header: version, type, flags, stream, length of the data. dataFrame is the type of
// frames with data; the length in the header of others is a number of another kind.
const (
	frameHeaderBytes = 12
	dataFrame        = 0
)

func (f *frameSplitter) Write(p []byte) (int, error) {
	f.pending = append(f.pending, p...)
	skipped := min(f.skip, len(f.pending))
	f.pending, f.skip = f.pending[skipped:], f.skip-skipped
	for len(f.pending) >= frameHeaderBytes {
		id, length := binary.BigEndian.Uint32(f.pending[4:]), 0
		if f.pending[1] == dataFrame {
			length = int(binary.BigEndian.Uint32(f.pending[8:]))
		}
		if len(f.pending) < frameHeaderBytes+length {
			break
		}
		f.tape.add(id, f.direction, f.pending[frameHeaderBytes:frameHeaderBytes+length])
		f.pending = f.pending[frameHeaderBytes+length:]
	}
	return len(p), nil
}

func (tp *tape) add(id uint32, direction int, data []byte) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	if tp.streams[id] == nil {
		tp.streams[id] = &[2][]byte{}
	}
	tp.streams[id][direction] = append(tp.streams[id][direction], data...)
}

// recordedMessage is a message of a call or a stream.
type recordedMessage struct {
	method string
	part   string // request, response, input, or output
	bytes  []byte
	value  any // see splitMessage
}

// messages returns all complete messages. Bodies of errors, which are empty, are left out. A stream that has not the form of the
// protocol is an error.
func (r *recorder) messages() (all []recordedMessage, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, recorded := range r.tapes {
		recorded.mu.Lock()
		for id, stream := range recorded.streams {
			messages, streamErr := messagesOf(stream, id%2 == 0)
			if streamErr != nil {
				err = errors.Join(err, fmt.Errorf("stream %d: %w", id, streamErr))
			}
			all = append(all, messages...)
		}
		recorded.mu.Unlock()
	}
	return all, err
}

// messagesOf returns the messages of one stream. The end that opens a stream calls.
func messagesOf(stream *[2][]byte, openedByServer bool) (all []recordedMessage, err error) {
	caller, callee := stream[fromNode], stream[fromServer]
	if openedByServer {
		caller, callee = callee, caller
	}
	if len(caller) == 0 {
		return nil, nil
	}
	requests, err := splitMessages(caller[1:])
	if err != nil {
		return nil, err
	}
	replies, err := splitMessages(callee)
	if err != nil {
		return nil, err
	}
	switch caller[0] {
	case wire.CallsByte:
		for i := 0; i+1 < len(requests); i += 2 {
			header, _ := requests[i].value.(map[string]any)
			method, _ := header["ServiceMethod"].(string)
			all = append(all, requests[i+1].as(method, "request"))
			if i+1 >= len(replies) {
				continue // the call has no answer yet
			}
			if header, _ := replies[i].value.(map[string]any); header["Error"] == "" {
				all = append(all, replies[i+1].as(method, "response"))
			}
		}
	case wire.StreamByte:
		if len(requests) == 0 {
			return nil, nil
		}
		header, _ := requests[0].value.(map[string]any)
		method, _ := header["Method"].(string)
		for i, part := range requests[1:] {
			name := "request"
			if i > 0 {
				name = "input"
			}
			all = append(all, part.as(method, name))
		}
		for _, part := range replies[min(1, len(replies)):] {
			all = append(all, part.as(method, "output"))
		}
	default:
		return nil, fmt.Errorf("first byte %#x", caller[0])
	}
	return all, nil
}

func (m recordedMessage) as(method, part string) recordedMessage {
	m.method, m.part = method, part
	return m
}

// splitMessages returns the complete messages in b.
func splitMessages(b []byte) (all []recordedMessage, err error) {
	for len(b) > 0 {
		value, rest, err := splitMessage(b)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return all, err
		}
		all = append(all, recordedMessage{bytes: b[:len(b)-len(rest)], value: value})
		b = rest
	}
	return all, nil
}

// splitMessage returns the first msgpack value of b, and the bytes after it. It does not use package wire, which it tests. The
// value is nil, a bool, an int64, a uint64 that is larger, a float64, a string, an []any or a map[string]any, so that different
// forms of zero are different values. Forms outside of the dialect of servers are errors.
func splitMessage(b []byte) (value any, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	kind, rest := b[0], b[1:]
	number := func(bytes int) (n uint64) {
		if len(rest) < bytes {
			err = io.ErrUnexpectedEOF
			return 0
		}
		for _, digit := range rest[:bytes] {
			n = n<<8 | uint64(digit)
		}
		rest = rest[bytes:]
		return n
	}
	length, isText, isList, isMap := uint64(0), false, false, false
	switch {
	case kind <= 0x7f:
		return int64(kind), rest, nil
	case kind >= 0xe0:
		return int64(int8(kind)), rest, nil
	case kind <= 0x8f:
		isMap, length = true, uint64(kind&0x0f)
	case kind <= 0x9f:
		isList, length = true, uint64(kind&0x0f)
	case kind <= 0xbf:
		isText, length = true, uint64(kind&0x1f)
	case kind == 0xc0:
		return nil, rest, nil
	case kind == 0xc2, kind == 0xc3:
		return kind == 0xc3, rest, nil
	case kind == 0xca:
		n := number(4)
		return float64(math.Float32frombits(uint32(n))), rest, err
	case kind == 0xcb:
		n := number(8)
		return math.Float64frombits(n), rest, err
	case kind >= 0xcc && kind <= 0xcf:
		n := number(1 << (kind - 0xcc))
		if n > math.MaxInt64 {
			return n, rest, err
		}
		return int64(n), rest, err
	case kind >= 0xd0 && kind <= 0xd3:
		bytes := 1 << (kind - 0xd0)
		shift := 64 - 8*bytes
		n := number(bytes)
		return int64(n<<shift) >> shift, rest, err
	case kind == 0xda, kind == 0xdb:
		isText, length = true, number(2<<(kind-0xda))
	case kind == 0xdc, kind == 0xdd:
		isList, length = true, number(2<<(kind-0xdc))
	case kind == 0xde, kind == 0xdf:
		isMap, length = true, number(2<<(kind-0xde))
	default:
		return nil, nil, fmt.Errorf("value with the first byte %#x", kind)
	}
	switch {
	case err != nil:
	case isText && uint64(len(rest)) < length:
		err = io.ErrUnexpectedEOF
	case isText:
		return string(rest[:length]), rest[length:], nil
	case isList:
		list := []any{}
		for range length {
			var element any
			if element, rest, err = splitMessage(rest); err != nil {
				return nil, nil, err
			}
			list = append(list, element)
		}
		return list, rest, nil
	case isMap:
		fields := map[string]any{}
		for range length {
			var key, field any
			if key, rest, err = splitMessage(rest); err != nil {
				return nil, nil, err
			}
			if field, rest, err = splitMessage(rest); err != nil {
				return nil, nil, err
			}
			fields[fmt.Sprint(key)] = field
		}
		return fields, rest, nil
	}
	return nil, nil, err
}

// TestRecorderSplitsFrames checks that a recorder finds messages whatever the pieces are in which bytes arrive.
func TestRecorderSplitsFrames(t *testing.T) {
	frame := func(kind byte, id uint32, length int, data ...byte) []byte {
		b := []byte{0, kind, 0, 0}
		b = binary.BigEndian.AppendUint32(b, id)
		return append(binary.BigEndian.AppendUint32(b, uint32(length)), data...)
	}
	header, err := wire.EncodeBytes(map[string]any{"ServiceMethod": "Status.Ping", "Seq": 1})
	if err != nil {
		t.Fatal(err)
	}
	body, err := wire.EncodeBytes(map[string]any{"Region": "global", "Index": -300, "Share": 0.5, "None": nil, "List": []any{}})
	if err != nil {
		t.Fatal(err)
	}
	call := append([]byte{wire.CallsByte}, header...)
	node := bytes.Join([][]byte{
		{wire.MultiplexByte}, frame(1, 1, 1<<20), frame(dataFrame, 1, len(call), call...), frame(dataFrame, 1, len(body), body...), frame(dataFrame, 3, 1, wire.CallsByte),
	}, nil)
	recorded := &tape{streams: map[uint32]*[2][]byte{}}
	splitter := &frameSplitter{tape: recorded, direction: fromNode, skip: 1}
	for len(node) > 0 {
		n := min(7, len(node))
		if _, err := splitter.Write(node[:n]); err != nil {
			t.Fatal(err)
		}
		node = node[n:]
	}
	messages, err := messagesOf(recorded.streams[1], false)
	if err != nil || len(messages) != 1 || messages[0].method != "Status.Ping" || !bytes.Equal(messages[0].bytes, body) {
		t.Errorf("got %+v, %v", messages, err)
	}
	if want := "map[Index:-300 List:[] None:<nil> Region:global Share:0.5]"; fmt.Sprint(messages[0].value) != want {
		t.Errorf("got %v, want %s", messages[0].value, want)
	}
}
