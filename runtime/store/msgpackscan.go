package store

import "errors"

var errInvalidMsgpack = errors.New("value is not valid msgpack")

// valueReader reads encoded values without decoding them. After an error all its results are empty.
type valueReader struct {
	rest []byte
	err  error
}

// next returns the next encoded value with its elements. It shares the reader's memory.
func (r *valueReader) next() []byte {
	size := 0
	for missing := 1; missing > 0; missing-- {
		head, elements := headSize(r.rest[size:])
		if head == 0 || head > len(r.rest)-size || elements > len(r.rest)-size-head { // an element has at least one byte
			r.fail()
			return nil
		}
		size += head
		missing += elements
	}
	value := r.rest[:size]
	r.rest = r.rest[size:]
	return value
}

// nextString returns the bytes of the next value, which must be a string.
func (r *valueReader) nextString() []byte {
	value := r.next()
	text, ok := stringContent(value)
	if !ok {
		r.fail()
	}
	return text
}

// mapSize returns the number of pairs in the next value, which must be a map. The next values are its keys and values, in turn.
func (r *valueReader) mapSize() int { return r.container(0x80, 0xde) / 2 }

// listSize is like mapSize for a list.
func (r *valueReader) listSize() int { return r.container(0x90, 0xdc) }

func (r *valueReader) container(short, long byte) (elements int) {
	head, elements := headSize(r.rest)
	if head == 0 || head > len(r.rest) || elements > len(r.rest) || r.rest[0]&0xf0 != short && r.rest[0]&^1 != long {
		r.fail()
		return 0
	}
	r.rest = r.rest[head:]
	return elements
}

func (r *valueReader) fail() { r.rest, r.err = nil, errInvalidMsgpack }

// stringContent returns an encoded string's content.
func stringContent(value []byte) (content []byte, ok bool) {
	switch {
	case len(value) == 0:
	case value[0] >= 0xa0 && value[0] <= 0xbf:
		return value[1:], true
	case value[0] >= 0xd9 && value[0] <= 0xdb:
		return value[1+1<<(value[0]-0xd9):], true
	}
	return nil, false
}

// intContent returns an encoded integer.
func intContent(value []byte) (n int64, ok bool) {
	if len(value) == 1 && (value[0] <= 0x7f || value[0] >= 0xe0) {
		return int64(int8(value[0])), true
	}
	if len(value) < 2 || value[0] < 0xcc || value[0] > 0xd3 {
		return 0, false
	}
	if isSigned := value[0] >= 0xd0; isSigned && value[1] >= 0x80 {
		n = -1
	}
	for _, digit := range value[1:] {
		n = n<<8 | int64(digit)
	}
	return n, value[0] != 0xcf || n >= 0 // 0xcf is an unsigned integer with 64 bits
}

// headSize returns the size of the first value in b without its elements, and how many elements it has: a map with two pairs
// has four. The value may be longer than b. The size is 0 if b is not msgpack.
func headSize(b []byte) (size, elements int) {
	if len(b) == 0 {
		return 0, 0
	}
	var lengthSize int // the size of the length after the first byte
	switch c := b[0]; {
	case c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
		return 1, 0
	case c <= 0x8f:
		return 1, 2 * int(c&0x0f)
	case c <= 0x9f:
		return 1, int(c & 0x0f)
	case c <= 0xbf:
		return 1 + int(c&0x1f), 0
	case c == 0xcc || c == 0xd0:
		return 2, 0
	case c == 0xcd || c == 0xd1:
		return 3, 0
	case c == 0xca || c == 0xce || c == 0xd2:
		return 5, 0
	case c == 0xcb || c == 0xcf || c == 0xd3:
		return 9, 0
	case c >= 0xd4 && c <= 0xd8: // an extension with 1, 2, 4, 8 or 16 bytes after its type
		return 2 + 1<<(c-0xd4), 0
	case c == 0xc4 || c == 0xc7 || c == 0xd9:
		lengthSize = 1
	case c == 0xc5 || c == 0xc8 || c == 0xda || c == 0xdc || c == 0xde:
		lengthSize = 2
	case c == 0xc6 || c == 0xc9 || c == 0xdb || c == 0xdd || c == 0xdf:
		lengthSize = 4
	default:
		return 0, 0
	}
	if len(b) < 1+lengthSize {
		return 0, 0
	}
	length := 0
	for _, digit := range b[1 : 1+lengthSize] {
		length = length<<8 | int(digit)
	}
	if length < 0 || length > len(b) { // less than 0 in 32 bits
		return 0, 0
	}
	switch c := b[0]; {
	case c <= 0xc6 || c >= 0xd9 && c <= 0xdb:
		return 1 + lengthSize + length, 0
	case c <= 0xc9: // an extension has a type after its length
		return 1 + lengthSize + 1 + length, 0
	case c <= 0xdd:
		return 1 + lengthSize, length
	}
	return 1 + lengthSize, 2 * length
}
