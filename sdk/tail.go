package sdk

import "sync"

// outputTailSize is the size in bytes of the end of a command's output that a host receives. It is far below the
// 4 MiB limit of a gRPC message.
const outputTailSize = 64 << 10

// outputTail is a writer that keeps the last outputTailSize bytes.
type outputTail struct {
	mu        sync.Mutex
	lastBytes []byte
}

func (t *outputTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > outputTailSize {
		p = p[len(p)-outputTailSize:]
	}
	t.lastBytes = append(t.lastBytes, p...)
	// The buffer is cut only at twice the size, so that the total cost of copying is linear in the length of
	// the output.
	if len(t.lastBytes) > 2*outputTailSize {
		t.lastBytes = append(t.lastBytes[:0], t.lastBytes[len(t.lastBytes)-outputTailSize:]...)
	}
	return n, nil
}

func (t *outputTail) tailBytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lastBytes) > outputTailSize {
		return t.lastBytes[len(t.lastBytes)-outputTailSize:]
	}
	return t.lastBytes
}
