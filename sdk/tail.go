package sdk

import "sync"

// outputTailSize is the maximum size of a command's output that a host receives, in bytes:
// the end of the output, far below the 4 MiB limit of a message.
const outputTailSize = 64 << 10

// outputTail keeps the end of the data written to it.
type outputTail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *outputTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > outputTailSize {
		p = p[len(p)-outputTailSize:]
	}
	t.buf = append(t.buf, p...)
	// The data are cut only at twice the size, so that the cost of copying is
	// linear.
	if len(t.buf) > 2*outputTailSize {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-outputTailSize:]...)
	}
	return n, nil
}

func (t *outputTail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf) > outputTailSize {
		return t.buf[len(t.buf)-outputTailSize:]
	}
	return t.buf
}
