package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
)

// maxBodies is how much memory the bodies of all requests take. The largest job needs it
// twice, for its pieces and for the whole.
const maxBodies = 2*maxJob + maxBody

// errBodies is the answer to a request that may be sent again.
var errBodies = &statusError{http.StatusServiceUnavailable,
	fmt.Sprintf("the bodies of all requests together are larger than %d bytes: send this one again", maxBodies)}

// budget is memory that several requests share.
type budget struct{ free atomic.Int64 }

func (b *budget) take(n int64) bool {
	if b.free.Add(-n) >= 0 {
		return true
	}
	b.free.Add(n)
	return false
}

func (b *budget) give(n int64) { b.free.Add(n) }

// maxPiece limits what is taken for a body before it has come.
const maxPiece = 64 << 10

// readAll reads to the end. size is the length of the text, -1 if it is unknown. The
// caller gives back what was taken, which is nothing after an error.
func (b *budget) readAll(r io.Reader, size int64) (text []byte, taken int64, err error) {
	defer func() {
		if err != nil {
			b.give(taken)
			text, taken = nil, 0
		}
	}()
	var pieces [][]byte
	// With one byte more, the end is found without another piece.
	next := min(max(size, 511)+1, maxPiece)
	for {
		if !b.take(next) {
			return nil, taken, errBodies
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
		if !b.take(whole) {
			return nil, taken, errBodies
		}
		text = slices.Concat(pieces...)
		b.give(taken)
		return text, whole, nil
	}
}

// fill reads until the buffer is full. Unlike io.ReadFull it returns the error of the
// reader, which tells a text that has ended from one that was cut off.
func fill(r io.Reader, p []byte) (read []byte, err error) {
	n := 0
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return p[:n], err
}
