package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
)

// maxBodies is how much memory the bodies of all requests may use. The largest job needs its size
// twice, for its pieces and for the complete body.
const maxBodies = 2*maxJob + maxBody

// errTooManyBodies is the reply to a request that the client may send again.
var errTooManyBodies = &statusError{http.StatusServiceUnavailable,
	fmt.Sprintf("the bodies of all requests together are larger than %d bytes: send this one again", maxBodies)}

// budget is memory that several requests share.
type budget struct{ free atomic.Int64 }

func (b *budget) reserve(n int64) bool {
	if b.free.Add(-n) >= 0 {
		return true
	}
	b.free.Add(n)
	return false
}

func (b *budget) release(n int64) { b.free.Add(n) }

// maxPiece limits the memory that is reserved for a body before its bytes arrive.
const maxPiece = 64 << 10

// readAll reads r to its end. size is the length of the text, -1 if it is unknown. The caller
// releases the bytes in taken; taken is zero after an error.
func (b *budget) readAll(r io.Reader, size int64) (text []byte, taken int64, err error) {
	defer func() {
		if err != nil {
			b.release(taken)
			text, taken = nil, 0
		}
	}()
	var pieces [][]byte
	// One extra byte makes the read of the last piece reach the end of the text.
	next := min(max(size, 511)+1, maxPiece)
	for {
		if !b.reserve(next) {
			return nil, taken, errTooManyBodies
		}
		taken += next
		piece, err := fill(r, make([]byte, next))
		pieces = append(pieces, piece)
		switch {
		case err == nil:
			next = maxPiece
			continue
		case !errors.Is(err, io.EOF):
			return nil, taken, err
		case len(pieces) == 1:
			return piece, taken, nil
		}
		whole := taken
		if !b.reserve(whole) {
			return nil, taken, errTooManyBodies
		}
		text = slices.Concat(pieces...)
		b.release(taken)
		return text, whole, nil
	}
}

// fill reads until the buffer is full. Unlike io.ReadFull it returns the error of the reader,
// which distinguishes a complete text from a truncated text.
func fill(r io.Reader, p []byte) (read []byte, err error) {
	n := 0
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return p[:n], err
}
