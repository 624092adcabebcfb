package evaluators

import (
	"encoding/gob"
	"errors"
	"io"
	"net"
	"time"
)

// maxMessageSize limits a message between the hook's process and an evaluator, in bytes. The hook and package evaluate have lower limits for
// what templates read and print.
const maxMessageSize = 96 << 20

var errMessageTooLarge = errors.New("the message exceeds the limit of its size")

// messageWriter refuses to write a message that is too large. The encoder writes each message at once.
type messageWriter struct{ w io.Writer }

func (m messageWriter) Write(message []byte) (int, error) {
	if len(message) > maxMessageSize {
		return 0, errMessageTooLarge
	}
	return m.w.Write(message)
}

// sendTimeout is the time after which a write to a process that does not read fails.
const sendTimeout = 10 * time.Second

// limits is the first message to an evaluator. The evaluator replies with an error text, empty on success.
type limits struct {
	Memory uint64        // bytes
	CPU    time.Duration // of the process, for all its evaluations
	Nice   int           // 0 means that of the agent
}

// messageConn sends and receives messages. One goroutine may send while another one receives.
type messageConn struct {
	conn    net.Conn
	encoder *gob.Encoder
	reader  *io.LimitedReader
	decoder *gob.Decoder
}

func newMessageConn(conn net.Conn) *messageConn {
	reader := &io.LimitedReader{R: conn}
	return &messageConn{conn: conn, encoder: gob.NewEncoder(messageWriter{conn}), reader: reader, decoder: gob.NewDecoder(reader)}
}

func (c *messageConn) send(message any) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return c.encoder.Encode(message)
}

// receive blocks until a message arrives or the connection is closed.
func (c *messageConn) receive(message any) error {
	c.reader.N = maxMessageSize
	return c.decoder.Decode(message)
}
