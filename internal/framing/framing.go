package framing

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Limits has the maximum size of the messages of a connection. Both ends use the same limits.
type Limits struct {
	MaxSize        int // maximum number of bytes in a message, without the header
	MaxDescriptors int // maximum number of file descriptors that are sent with a message
}

// headerSize is the size in bytes of the header of each message, which contains the length of the message.
const headerSize = 4

// ErrDown means that a message was not sent, or was sent in part, because the connection has failed.
var ErrDown = errors.New("connection is down")

// ErrNoFreeDescriptors means that a message was received without its descriptors, because this process has
// reached its limit of open files. The message itself was decoded.
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
	if len(body) > l.MaxSize {
		return nil, fmt.Errorf("message of %d bytes is over the limit of %d", len(body), l.MaxSize)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, headerSize+len(body)), uint32(len(body)))
	return append(frame, body...), nil
}

// Socket is a connected unix stream socket that the poller of the runtime watches: a net.UnixConn, or an os.File of a
// non-blocking socket, for a process that does not wait for the initialization of package net.
type Socket interface {
	io.Closer
	syscall.Conn
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// Conn sends and receives messages on a unix stream socket, which it owns. One goroutine may
// receive while others send.
type Conn struct {
	socket   Socket
	receiver *Receiver
	sendMu   sync.Mutex // serialises sent messages
}

// NewConn returns a Conn, which the caller must close.
func NewConn(socket Socket, limits Limits) *Conn {
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
	if len(fds) > limits.MaxDescriptors {
		return fmt.Errorf("message with %d descriptors is over the limit of %d", len(fds), limits.MaxDescriptors)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}

	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if err := c.sendFrame(frame, oob); err != nil {
		c.socket.Close()
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	return nil
}

// sendFrame sends an encoded message, with the control message oob beside its first byte.
func (c *Conn) sendFrame(frame, oob []byte) error {
	if err := c.socket.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) (done bool) {
		for len(frame) > 0 {
			n, err := unix.SendmsgN(int(fd), frame, oob, nil, unix.MSG_NOSIGNAL)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return false
			case err != nil:
				sendErr = err
				return true
			}
			frame, oob = frame[n:], nil
		}
		return true
	})
	return errors.Join(err, sendErr)
}

// Receive blocks until a message has arrived, and decodes it into msg. The caller must close the received
// descriptors, which are nil after an error. After any error other than ErrNoFreeDescriptors the
// connection can no longer be used. The error is io.EOF if the peer has closed the connection between two messages.
func (c *Conn) Receive(msg any) ([]int, error) {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	return c.receiver.receive(func(p, oob []byte) (n, oobn, flags int, err error) {
		waitErr := raw.Read(func(fd uintptr) (done bool) {
			n, oobn, flags, err = receiveNow(int(fd), p, oob)
			return !errors.Is(err, unix.EAGAIN)
		})
		if waitErr != nil {
			return 0, 0, 0, waitErr
		}
		return n, oobn, flags, err
	}, msg)
}

// receiveNow calls recvmsg(2), which does not block: the error is unix.EAGAIN if nothing has arrived.
func receiveNow(socket int, p, oob []byte) (n, oobn, flags int, err error) {
	for {
		n, oobn, flags, _, err = unix.Recvmsg(socket, p, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, flags, err
		}
	}
}

// Receiver assembles messages from the pieces that a socket delivers. It reads no byte beyond the
// end of a message, because the kernel reports by which read it has delivered descriptors, and not with which
// byte. It is for processes that wait for many sockets with epoll(7); other processes use Conn.
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

// ReceiveNow receives a message like [Conn.Receive], but does not block: the error is unix.EAGAIN if no complete message
// has arrived. The next call continues with the bytes that have arrived.
func (r *Receiver) ReceiveNow(socket int, msg any) ([]int, error) {
	return r.receive(func(p, oob []byte) (n, oobn, flags int, err error) { return receiveNow(socket, p, oob) }, msg)
}

// Close closes the descriptors that have arrived with an incomplete message. It does not close the
// socket.
func (r *Receiver) Close() { r.takeDescriptors(true) }

// receive calls read, which reads from the socket, until a message is complete, and decodes the message.
func (r *Receiver) receive(read func(p, oob []byte) (n, oobn, flags int, err error), msg any) ([]int, error) {
	oob := make([]byte, unix.CmsgSpace(4*r.limits.MaxDescriptors))
	for {
		missing, err := r.nextReadBuffer()
		if err != nil {
			r.Close()
			return nil, err
		}
		if len(missing) == 0 {
			return r.decodeMessage(msg)
		}
		n, oobn, flags, err := read(missing, oob)
		if errors.Is(err, unix.EAGAIN) {
			return nil, unix.EAGAIN
		}
		if fdErr := r.addDescriptors(oob[:max(oobn, 0)], flags); fdErr != nil {
			err = fdErr
		}
		if err == nil && n == 0 {
			if err = io.ErrUnexpectedEOF; len(r.header) == 0 {
				err = io.EOF
			}
		}
		if err != nil {
			r.Close()
			return nil, err
		}
		r.addReadBytes(n)
	}
}

// maxBodyGrowth is the maximum memory, in bytes, that is allocated for bytes of a message that have not arrived.
const maxBodyGrowth = 32 << 10

// nextReadBuffer returns the buffer for the next bytes of the current message. It is empty if the
// message is complete.
func (r *Receiver) nextReadBuffer() ([]byte, error) {
	if n := len(r.header); n < headerSize {
		return r.header[n:headerSize], nil
	}
	size := int64(binary.BigEndian.Uint32(r.header))
	if size > int64(r.limits.MaxSize) {
		return nil, fmt.Errorf("message of %d bytes is over the limit of %d", size, r.limits.MaxSize)
	}
	n := len(r.body)
	growth := min(int(size)-n, maxBodyGrowth)
	if cap(r.body)-n < growth {
		r.body = append(make([]byte, 0, min(2*n+growth, int(size))), r.body...)
	}
	return r.body[n : n+growth], nil
}

// addReadBytes adds n bytes to the current message, which were read into the buffer of nextReadBuffer.
func (r *Receiver) addReadBytes(n int) {
	if have := len(r.header); have < headerSize {
		r.header = r.header[:have+n]
	} else {
		r.body = r.body[:len(r.body)+n]
	}
}

// decodeMessage decodes the complete message into msg, and resets the Receiver for the next message.
func (r *Receiver) decodeMessage(msg any) ([]int, error) {
	err := json.Unmarshal(r.body, msg)
	if err == nil && r.lacksFDs {
		err = ErrNoFreeDescriptors
	}
	r.header, r.body, r.lacksFDs = r.header[:0], nil, false
	return r.takeDescriptors(err != nil), err
}

// takeDescriptors removes the descriptors of the current message. It returns them, or closes them if discard is true.
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

// addDescriptors adds the descriptors that the kernel has delivered with a read. They are not converted to os.Files,
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
	case truncated && len(r.fds) < r.limits.MaxDescriptors:
		r.lacksFDs = true
	case truncated, len(r.fds) > r.limits.MaxDescriptors:
		return fmt.Errorf("message with more than %d descriptors", r.limits.MaxDescriptors)
	}
	return nil
}
