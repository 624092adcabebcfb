package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// readStep is how many of a value's bytes are read at once: memory is allocated for received, not for announced bytes.
	readStep = 64 << 10
	// maxKeptBytes is the maximum message size for which a Decoder keeps its memory for the next one.
	maxKeptBytes = 64 << 10
)

var errInvalidCode = fmt.Errorf("%w: it has a byte that starts no value", ErrInvalidMessage)

// readValue appends the stream's next value to the message. values is how many values the message can still have.
func (d *Decoder) readValue(values *int, depth int) error {
	if *values--; *values < 0 {
		return fmt.Errorf("%w: more than %d values", ErrMessageTooLarge, d.limits.values)
	}
	if depth > maxMessageDepth {
		return fmt.Errorf("%w: deeper than %d", ErrMessageTooLarge, maxMessageDepth)
	}
	if err := d.read(1); err != nil {
		return err
	}
	code := d.message[len(d.message)-1]
	switch {
	case code < 0x80 || code >= 0xe0 || code == 0xc0 || code == 0xc2 || code == 0xc3: // small numbers, nil, false, true
		return nil
	case code < 0x90:
		return d.readValues(2*uint64(code&0x0f), values, depth)
	case code < 0xa0:
		return d.readValues(uint64(code&0x0f), values, depth)
	case code < 0xc0:
		return d.read(uint64(code & 0x1f))
	}
	k := kinds[code-0xc0]
	length, err := d.readLength(k.lengthBytes)
	switch {
	case err != nil:
		return err
	case k.fixedBytes == 0 && k.lengthBytes == 0:
		return errInvalidCode
	case k.elements > 0:
		return d.readValues(length*k.elements, values, depth)
	}
	return d.read(length + k.fixedBytes)
}

// kind describes what follows a value's code.
type kind struct {
	lengthBytes int    // bytes of the length
	fixedBytes  uint64 // bytes after the length, besides those it counts
	elements    uint64 // values per unit of the length; zero means it counts bytes
}

// kinds has the kinds of the codes from 0xc0. Codes handled by readValue itself are empty, as is the unused code.
var kinds = [0x20]kind{
	0x04: {1, 0, 0}, 0x05: {2, 0, 0}, 0x06: {4, 0, 0}, // bin
	0x07: {1, 1, 0}, 0x08: {2, 1, 0}, 0x09: {4, 1, 0}, // ext
	0x0a: {0, 4, 0}, 0x0b: {0, 8, 0}, // float
	0x0c: {0, 1, 0}, 0x0d: {0, 2, 0}, 0x0e: {0, 4, 0}, 0x0f: {0, 8, 0}, // uint
	0x10: {0, 1, 0}, 0x11: {0, 2, 0}, 0x12: {0, 4, 0}, 0x13: {0, 8, 0}, // int
	0x14: {0, 2, 0}, 0x15: {0, 3, 0}, 0x16: {0, 5, 0}, 0x17: {0, 9, 0}, 0x18: {0, 17, 0}, // fixext
	0x19: {1, 0, 0}, 0x1a: {2, 0, 0}, 0x1b: {4, 0, 0}, // str
	0x1c: {2, 0, 1}, 0x1d: {4, 0, 1}, // array
	0x1e: {2, 0, 2}, 0x1f: {4, 0, 2}, // map
}

// readLength reads a length of n bytes; without bytes it is zero.
func (d *Decoder) readLength(n int) (uint64, error) {
	if err := d.read(uint64(n)); err != nil {
		return 0, err
	}
	var padded [8]byte
	copy(padded[8-n:], d.message[len(d.message)-n:])
	return binary.BigEndian.Uint64(padded[:]), nil
}

// readValues appends n values below the given depth.
func (d *Decoder) readValues(n uint64, values *int, depth int) error {
	for ; n > 0; n-- {
		if err := d.readValue(values, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// read appends the stream's next n bytes to the message.
func (d *Decoder) read(n uint64) error {
	if n > uint64(d.limits.bytes-len(d.message)) {
		return fmt.Errorf("%w: more than %d bytes", ErrMessageTooLarge, d.limits.bytes)
	}
	for n > 0 {
		step, read := min(n, readStep), len(d.message)
		d.message = append(d.message, make([]byte, step)...)
		if _, err := io.ReadFull(d.in, d.message[read:]); errors.Is(err, io.ErrUnexpectedEOF) {
			return io.EOF
		} else if err != nil {
			return err
		}
		n -= step
	}
	return nil
}
