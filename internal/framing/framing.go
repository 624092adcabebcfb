package framing

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound the messages of a connection. Both ends use the same limits.
type Limits struct {
	Size        int // bytes of a message, without its header
	Descriptors int // descriptors of a message
}

// headerSize is the size of the length in front of each message.
const headerSize = 4

// ErrDown means that a message was not sent, or not as a whole, because the connection failed.
var ErrDown = errors.New("connection is down")

// ErrNoFreeDescriptors means that a message came without its descriptors, because this process has
// reached its limit. The message itself is decoded.
var ErrNoFreeDescriptors error = noFreeDescriptorsError{}

type noFreeDescriptorsError struct{}

func (noFreeDescriptorsError) Error() string { return "no free file descriptors (ulimit -n)" }
func (noFreeDescriptorsError) Unwrap() error { return unix.EMFILE }

// Encode returns a message with its header.
func (l Limits) Encode(msg any) ([]byte, error) {
	body, err := json.Marshal(msg)
	if err != nil {
		return nil, err
	}
	if len(body) > l.Size {
		return nil, fmt.Errorf("message of %d bytes is over the limit of %d", len(body), l.Size)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, headerSize+len(body)), uint32(len(body)))
	return append(frame, body...), nil
}

// Conn sends and receives messages on a unix stream socket, which it owns. One goroutine may
// receive while others send.
type Conn struct {
	socket   *net.UnixConn
	receiver *Receiver
	mu       sync.Mutex // serialises sent messages
}

// NewConn returns a Conn, which the caller must close.
func NewConn(socket *net.UnixConn, limits Limits) *Conn {
	return &Conn{socket: socket, receiver: NewReceiver(limits)}
}

// Close closes the socket. A blocked Send or Receive returns.
func (c *Conn) Close() error { return c.socket.Close() }

// Send sends one message. The caller remains the owner of the descriptors. Send closes the socket
// when it returns ErrDown, also if the peer does not read for ten seconds, because a message may
// have been sent in part; any other error is an error of the message.
func (c *Conn) Send(msg any, fds ...int) error {
	limits := c.receiver.limits
	frame, err := limits.Encode(msg)
	if err != nil {
		return err
	}
	if len(fds) > limits.Descriptors {
		return fmt.Errorf("message with %d descriptors is over the limit of %d", len(fds), limits.Descriptors)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.socket.SetWriteDeadline(time.Now().Add(10 * time.Second))
	n := 0
	if err == nil {
		n, _, err = c.socket.WriteMsgUnix(frame, oob, nil)
	}
	if err == nil && n < len(frame) {
		_, err = c.socket.Write(frame[n:])
	}
	if err != nil {
		c.socket.Close()
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return nil
}

// Receive blocks until a message has come, and decodes it. The caller must close the received
// descriptors; with an error there are none. After any error other than ErrNoFreeDescriptors the
// connection can no longer be used. The end of the connection between two messages is io.EOF.
func (c *Conn) Receive(msg any) ([]int, error) {
	return c.receiver.receive(func(p, oob []byte) (n, oobn, flags int, err error) {
		n, oobn, flags, _, err = c.socket.ReadMsgUnix(p, oob)
		return n, oobn, flags, err
	}, msg)
}

// Receiver assembles messages from the pieces that a socket delivers. It reads no byte beyond the
// end of a message, because the kernel reports in which read descriptors came, and not with which
// byte. It is for processes that wait for many sockets; others use Conn.
type Receiver struct {
	limits Limits

	header   []byte
	body     []byte
	fds      []int
	lacksFDs bool // the kernel dropped descriptors, because this process has no free ones
}

// NewReceiver returns the Receiver of one socket.
func NewReceiver(limits Limits) *Receiver {
	return &Receiver{limits: limits, header: make([]byte, 0, headerSize)}
}

// ReceiveNow is [Conn.Receive] without blocking: the error is unix.EAGAIN if no complete message
// has come. The bytes that have come are kept for the next call.
func (r *Receiver) ReceiveNow(socket int, msg any) ([]int, error) {
	return r.receive(func(p, oob []byte) (int, int, int, error) {
		for {
			n, oobn, flags, _, err := unix.Recvmsg(socket, p, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			if !errors.Is(err, unix.EINTR) {
				return n, oobn, flags, err
			}
		}
	}, msg)
}

// Close closes the descriptors of a message that has not come as a whole. It does not close the
// socket.
func (r *Receiver) Close() { r.takeDescriptors(true) }

// receive reads with read until a message is complete.
func (r *Receiver) receive(read func(p, oob []byte) (n, oobn, flags int, err error), msg any) ([]int, error) {
	oob := make([]byte, unix.CmsgSpace(4*r.limits.Descriptors))
	for {
		missing, err := r.missing()
		if err != nil {
			r.Close()
			return nil, err
		}
		if len(missing) == 0 {
			return r.decode(msg)
		}
		n, oobn, flags, err := read(missing, oob)
		if errors.Is(err, unix.EAGAIN) {
			return nil, unix.EAGAIN
		}
		if fdErr := r.addDescriptors(oob[:max(oobn, 0)], flags); fdErr != nil {
			err = fdErr
		}
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			if err = io.ErrUnexpectedEOF; len(r.header) == 0 {
				err = io.EOF
			}
		}
		if err != nil {
			r.Close()
			return nil, err
		}
		r.advance(n)
	}
}

// maxGrowth is the memory for bytes that the header announces and that have not come.
const maxGrowth = 32 << 10

// missing returns the memory for the next bytes of the current message, which is empty if the
// message is complete.
func (r *Receiver) missing() ([]byte, error) {
	if n := len(r.header); n < headerSize {
		return r.header[n:headerSize], nil
	}
	size := int64(binary.BigEndian.Uint32(r.header))
	if size > int64(r.limits.Size) {
		return nil, fmt.Errorf("message of %d bytes is over the limit of %d", size, r.limits.Size)
	}
	n := len(r.body)
	growth := min(int(size)-n, maxGrowth)
	if cap(r.body)-n < growth {
		r.body = append(make([]byte, 0, min(2*n+growth, int(size))), r.body...)
	}
	return r.body[n : n+growth], nil
}

// advance counts bytes that were read into the memory of missing.
func (r *Receiver) advance(n int) {
	if have := len(r.header); have < headerSize {
		r.header = r.header[:have+n]
	} else {
		r.body = r.body[:len(r.body)+n]
	}
}

// decode decodes the complete message, and prepares for the next one.
func (r *Receiver) decode(msg any) ([]int, error) {
	err := json.Unmarshal(r.body, msg)
	if err == nil && r.lacksFDs {
		err = ErrNoFreeDescriptors
	}
	r.header, r.body, r.lacksFDs = r.header[:0], nil, false
	return r.takeDescriptors(err != nil), err
}

// takeDescriptors returns the descriptors of the current message, or closes them.
func (r *Receiver) takeDescriptors(discard bool) []int {
	fds := r.fds
	r.fds = nil
	if discard {
		CloseAll(fds)
		return nil
	}
	return fds
}

// CloseAll closes received descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// addDescriptors adds the descriptors that came with a read. They are numbers and not os.Files,
// because Go's poller would watch a FIFO and wake this process for every line that a task writes.
func (r *Receiver) addDescriptors(oob []byte, flags int) error {
	var messages []unix.SocketControlMessage
	if len(oob) > 0 {
		var err error
		if messages, err = unix.ParseSocketControlMessage(oob); err != nil {
			return fmt.Errorf("receive descriptors: %w", err)
		}
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fmt.Errorf("receive descriptors: %w", err)
		}
		r.fds = append(r.fds, fds...)
	}
	switch truncated := flags&unix.MSG_CTRUNC != 0; {
	case truncated && len(r.fds) < r.limits.Descriptors:
		r.lacksFDs = true
	case truncated, len(r.fds) > r.limits.Descriptors:
		return fmt.Errorf("message with more than %d descriptors", r.limits.Descriptors)
	}
	return nil
}
