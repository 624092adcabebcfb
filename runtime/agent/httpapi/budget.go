package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
)

// maxBodyMemory is how much memory the bodies of all requests may use. The largest job needs its size
// twice, because the pieces that were read are copied to the complete body.
const maxBodyMemory = 2*maxJobBytes + maxBodyBytes

// errTooManyBodies is the reply if there is no memory for the body of a request now. The client may
// send the request again.
var errTooManyBodies = &statusError{http.StatusServiceUnavailable,
	fmt.Sprintf("the bodies of all requests together are larger than %d bytes: send this one again", maxBodyMemory)}

// sharedMemoryBudget is memory that several requests share.
type sharedMemoryBudget struct{ freeBytes atomic.Int64 }

func (b *sharedMemoryBudget) tryReserve(n int64) bool {
	if b.freeBytes.Add(-n) >= 0 {
		return true
	}
	b.freeBytes.Add(n)
	return false
}

func (b *sharedMemoryBudget) release(n int64) { b.freeBytes.Add(n) }

// maxReadChunk limits the memory that is reserved for a body before its bytes arrive.
const maxReadChunk = 64 << 10

// readAll reads r to its end and returns the text. size is the length of the text, or -1 if it is unknown. reservedBytes
// is the number of bytes that readAll has reserved, and that the caller must release; reservedBytes is zero after an
// error.
func (b *sharedMemoryBudget) readAll(r io.Reader, size int64) (text []byte, reservedBytes int64, err error) {
	defer func() {
		if err != nil {
			b.release(reservedBytes)
			text, reservedBytes = nil, 0
		}
	}()
	var bodyPieces [][]byte
	// The last piece is one byte longer than the rest of the text, so that its read reports the end of the
	// text.
	next := min(max(size, 511)+1, maxReadChunk)
	for {
		if !b.tryReserve(next) {
			return nil, reservedBytes, errTooManyBodies
		}
		reservedBytes += next
		piece, err := readUntilFull(r, make([]byte, next))
		bodyPieces = append(bodyPieces, piece)
		switch {
		case err == nil:
			next = maxReadChunk
			continue
		case !errors.Is(err, io.EOF):
			return nil, reservedBytes, err
		case len(bodyPieces) == 1:
			return piece, reservedBytes, nil
		}
		whole := reservedBytes
		if !b.tryReserve(whole) {
			return nil, reservedBytes, errTooManyBodies
		}
		text = slices.Concat(bodyPieces...)
		b.release(reservedBytes)
		return text, whole, nil
	}
}

// readUntilFull reads until the buffer is full. Unlike io.ReadFull it returns the error of the reader,
// which distinguishes a complete text from a truncated text.
func readUntilFull(r io.Reader, p []byte) (read []byte, err error) {
	n := 0
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return p[:n], err
}
