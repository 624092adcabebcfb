package terminal

import (
	"io"
	"os"
	"sync"
)

// InterruptibleInput is a reader of a console whose blocked Read can be ended by Close. The read of the console itself
// cannot be ended, so a key that is typed after Close is lost.
type InterruptibleInput struct {
	chunks      chan []byte
	closed      chan struct{}
	startReader sync.Once
	file        *os.File
	unread      []byte // rest of the last chunk; only Read uses it
}

// NewInterruptibleInput returns a reader of a file, which stays open when the reader is closed.
func NewInterruptibleInput(file *os.File) (*InterruptibleInput, error) {
	return &InterruptibleInput{chunks: make(chan []byte), closed: make(chan struct{}), file: file}, nil
}

// Read blocks until the file has input. After Close it returns io.EOF.
func (i *InterruptibleInput) Read(p []byte) (int, error) {
	i.startReader.Do(func() { go i.readFileIntoChunks() })
	if len(i.unread) == 0 {
		select {
		case chunk, ok := <-i.chunks:
			if !ok {
				return 0, io.EOF
			}
			i.unread = chunk
		case <-i.closed:
			return 0, io.EOF
		}
	}
	n := copy(p, i.unread)
	i.unread = i.unread[n:]
	return n, nil
}

func (i *InterruptibleInput) readFileIntoChunks() {
	defer close(i.chunks)
	for {
		chunk := make([]byte, 256)
		n, err := i.file.Read(chunk)
		select {
		case i.chunks <- chunk[:n]:
		case <-i.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

// Close ends a blocked Read. It must be called once.
func (i *InterruptibleInput) Close() error {
	close(i.closed)
	return nil
}
