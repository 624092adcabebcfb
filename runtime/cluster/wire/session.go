package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/yamux"
)

// The first byte on a connection and on a stream says what follows.
const (
	// CallsByte starts a stream with calls.
	CallsByte = 0x01
	// TLSByte starts a TLS handshake; a second first byte follows inside TLS.
	TLSByte = 0x04
	// StreamByte starts a stream for one streaming method.
	StreamByte = 0x05
	// MultiplexByte starts a yamux session with a first byte on each stream.
	MultiplexByte = 0x06
)

const (
	// streamHeaderTimeout limits how long the peer may take for a stream's first byte and header.
	streamHeaderTimeout = 10 * time.Second
	// maxPeerStreams limits how many of the peer's streams are served at the same time.
	maxPeerStreams = 256
	// maxSessionStreams limits a session's streams, including those this end has closed and the peer has not: each can have 256 KiB
	// of received data.
	maxSessionStreams = 4 * maxPeerStreams
)

// ErrSessionClosed means the connection was closed before a call's reply.
var ErrSessionClosed = errors.New("connection to the server is closed")

// ServerError is the error text with which the peer answered a call.
type ServerError string

func (e ServerError) Error() string { return string(e) }

// maxErrorBytes limits an error text, which is logged and stored.
const maxErrorBytes = 8 << 10

func newServerError(text string) ServerError {
	return ServerError(strings.ToValidUTF8(text[:min(len(text), maxErrorBytes)], "?"))
}

// requestHeader and responseHeader precede a request's and a response's body.
type (
	requestHeader struct {
		ServiceMethod string
		Seq           uint64
	}
	responseHeader struct {
		ServiceMethod string
		Seq           uint64
		Error         string
	}
	// streamHeader starts a streaming method, streamAcceptance answers it.
	streamHeader     struct{ Method string }
	streamAcceptance struct{ Error string }
)

// Multiplexer carries a session's streams, in both directions. Its methods may be called concurrently.
type Multiplexer interface {
	// Open opens a stream. It may block while the peer accepts no streams.
	Open() (net.Conn, error)
	// AcceptContext returns the next stream the peer opens. It blocks until there is one, ctx ends or the session is closed.
	AcceptContext(ctx context.Context) (net.Conn, error)
	// Close closes the session and its streams. It may be called twice.
	Close() error
	CloseChan() <-chan struct{} // closed when the session is closed, by either end
	NumStreams() int
	RemoteAddr() net.Addr
}

// Yamux is the Multiplexer for network connections. Tests with virtual time have another, because yamux shares timers between all
// of a process's sessions.
type Yamux struct{ *yamux.Session }

// AcceptContext implements Multiplexer.
func (y Yamux) AcceptContext(ctx context.Context) (net.Conn, error) {
	stream, err := y.AcceptStreamWithContext(ctx)
	if err != nil {
		return nil, err
	}
	return stream, nil
}

// Session is a connection between a node and a server. Its methods may be called concurrently.
type Session struct {
	mux      Multiplexer
	logger   hclog.Logger
	overTLS  bool
	lastSeq  atomic.Uint64
	anyReply atomic.Bool // the peer has answered a call
}

// NewSession returns mux's session. overTLS says that mux's connection is encrypted.
func NewSession(mux Multiplexer, overTLS bool, logger hclog.Logger) *Session {
	return &Session{mux: mux, overTLS: overTLS, logger: logger}
}

// Close closes the connection. Calls and streams on it fail. It may be called twice.
func (s *Session) Close() error { return s.mux.Close() }

// Closed returns a channel that is closed when either end closes the connection.
func (s *Session) Closed() <-chan struct{} { return s.mux.CloseChan() }

// StreamCount returns the number of open streams, for calls and for streaming methods in both directions.
func (s *Session) StreamCount() int { return s.mux.NumStreams() }

// PeerAddr returns the peer's address.
func (s *Session) PeerAddr() net.Addr { return s.mux.RemoteAddr() }

// Call calls a method on the peer and decodes the reply into the value response points to. It blocks until the reply arrives or
// ctx ends, then it returns ctx's cause. Its error is a ServerError if the peer has answered with an error; after any other error
// the peer may or may not have executed the method.
func (s *Session) Call(ctx context.Context, method string, request, response any) error {
	stream, err := s.openStream(ctx)
	if err != nil {
		return s.callError(ctx, method, err)
	}
	defer stream.Close()
	defer interruptAtEnd(ctx, stream)()

	header := requestHeader{ServiceMethod: method, Seq: s.lastSeq.Add(1)}
	if err := NewEncoder(stream).encodeAfter([]byte{CallsByte}, &header, request); err != nil {
		return s.callError(ctx, method, err)
	}
	decoder := NewDecoder(stream)
	var answer responseHeader
	if err := decoder.Decode(&answer); err != nil {
		return s.callError(ctx, method, err)
	}
	s.anyReply.Store(true)
	if answer.Error != "" {
		return newServerError(answer.Error)
	}
	if err := decoder.Decode(response); err != nil {
		return s.callError(ctx, method, err)
	}
	return nil
}

// OpenStream starts a streaming method on the peer with request. It blocks until the peer has accepted the method; its error is a
// ServerError if the peer rejected it. The caller must close the Stream. ctx's end interrupts the Stream.
func (s *Session) OpenStream(ctx context.Context, method string, request any) (*Stream, error) {
	conn, err := s.openStream(ctx)
	if err != nil {
		return nil, s.callError(ctx, method, err)
	}
	stream := newStream(conn, responseLimits)
	stream.stopInterrupting = interruptAtEnd(ctx, conn)
	var accepted streamAcceptance
	err = stream.encoder.encodeAfter([]byte{StreamByte}, &streamHeader{method})
	if err == nil {
		err = stream.Receive(&accepted)
	}
	if err == nil && accepted.Error != "" {
		err = newServerError(accepted.Error)
	}
	if err == nil {
		err = stream.Send(request)
	}
	if err != nil {
		return nil, errors.Join(s.callError(ctx, method, err), stream.Close())
	}
	return stream, nil
}

// openStream opens a stream. yamux blocks without a timeout while the peer accepts no more streams, so openStream returns when
// ctx ends and closes a stream opened later.
func (s *Session) openStream(ctx context.Context) (net.Conn, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	type result struct {
		stream net.Conn
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		stream, err := s.mux.Open()
		opened <- result{stream, err}
	}()
	select {
	case r := <-opened:
		return r.stream, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				r.stream.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// callError returns the error for a call that failed with err.
func (s *Session) callError(ctx context.Context, method string, err error) error {
	var serverError ServerError
	if errors.As(err, &serverError) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("call %s of server %s: %w", method, s.PeerAddr(), cause)
	}
	if errors.Is(err, ErrInvalidMessage) {
		return fmt.Errorf("call %s of server %s: %w", method, s.PeerAddr(), err)
	}
	if s.overTLS && !s.anyReply.Load() {
		err = fmt.Errorf("%w before the first reply: the server has probably rejected the certificate of this node, its log has the reason", err)
	}
	return fmt.Errorf("call %s of server %s: %w: %w", method, s.PeerAddr(), ErrSessionClosed, err)
}

// interruptAtEnd interrupts stream's reads and writes when ctx ends, until the returned function was called.
func interruptAtEnd(ctx context.Context, stream net.Conn) (stopInterrupting func()) {
	stop := context.AfterFunc(ctx, func() { stream.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// Methods are the methods a peer may call, by name.
type Methods struct {
	Calls   map[string]CallFunc
	Streams map[string]StreamFunc
}

// CallFunc answers one call: decode reads the request into the value its argument points to. The error text is sent to the peer.
// ctx ends when the session ends.
type CallFunc func(ctx context.Context, decode func(any) error) (response any, err error)

// StreamFunc serves one stream with the request as first message. The stream is closed when the function returns. ctx ends when
// the session ends.
type StreamFunc func(ctx context.Context, s *Stream)

// Method returns the CallFunc for a function with typed messages.
func Method[Request, Response any](f func(context.Context, *Request) (*Response, error)) CallFunc {
	return func(ctx context.Context, decode func(any) error) (any, error) {
		var request Request
		if err := decode(&request); err != nil {
			return nil, err
		}
		response, err := f(ctx, &request)
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// Serve answers the calls and streams the peer opens, until the connection is closed or ctx ends. It returns when all functions
// in methods have returned. A stream above the limit of 256 is closed without an answer. If a peer opens many more and does not
// close them, Serve closes the connection.
func (s *Session) Serve(ctx context.Context, methods Methods) {
	ctx, cancel := context.WithCancelCause(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel(ErrSessionClosed)
	free := make(chan struct{}, maxPeerStreams)
	for {
		stream, err := s.mux.AcceptContext(ctx)
		if err != nil {
			return
		}
		select {
		case free <- struct{}{}:
		default:
			s.logger.Warn("rejected a stream of the server: too many are open", "server", s.PeerAddr(), "limit", maxPeerStreams)
			stream.Close()
			if s.mux.NumStreams() > maxSessionStreams {
				s.logger.Error("closing the connection to a server that does not close its streams", "server", s.PeerAddr(), "limit", maxSessionStreams)
				s.Close()
			}
			continue
		}
		serving.Go(func() {
			defer func() { <-free }()
			defer stream.Close()
			defer interruptAtEnd(ctx, stream)()
			if err := s.serveStream(ctx, stream, methods); errors.Is(err, ErrInvalidMessage) {
				s.logger.Error("rejected a message of a server", "server", s.PeerAddr(), "error", err)
			} else if err != nil {
				s.logger.Debug("stream of the server has failed", "server", s.PeerAddr(), "error", err)
			}
		})
	}
}

// serveStream serves one of the peer's streams.
func (s *Session) serveStream(ctx context.Context, conn net.Conn, methods Methods) error {
	if err := conn.SetReadDeadline(time.Now().Add(streamHeaderTimeout)); err != nil {
		return err
	}
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return fmt.Errorf("read the first byte of a stream: %w", err)
	}
	switch first[0] {
	case CallsByte:
		return s.serveCalls(ctx, conn, methods.Calls)
	case StreamByte:
		return serveStreamingMethod(ctx, conn, methods.Streams)
	default:
		return fmt.Errorf("%w: unknown first byte %#x of a stream", ErrInvalidMessage, first[0])
	}
}

// serveCalls answers the calls on conn one after the other, until the peer closes it.
func (s *Session) serveCalls(ctx context.Context, conn net.Conn, calls map[string]CallFunc) error {
	encoder, decoder := NewEncoder(conn), newDecoder(conn, requestLimits)
	for {
		var header requestHeader
		if err := decoder.Decode(&header); errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil // the peer makes no more calls
		} else if err != nil {
			return fmt.Errorf("read the header of a call: %w", err)
		}
		call, known := calls[header.ServiceMethod]
		answer := responseHeader{ServiceMethod: header.ServiceMethod, Seq: header.Seq}
		if !known {
			// The text is net/rpc's, which Nomad servers pass on to their users.
			answer.Error = "rpc: can't find service " + header.ServiceMethod
			return encoder.Encode(&answer, struct{}{})
		}
		decoded := false
		response, err := call(ctx, func(request any) error {
			if err := decoder.Decode(request); err != nil {
				return fmt.Errorf("read the request of %s: %w", header.ServiceMethod, err)
			}
			decoded = true
			return conn.SetReadDeadline(time.Time{})
		})
		if err != nil {
			answer.Error, response = err.Error(), struct{}{}
		}
		if encodeErr := encoder.Encode(&answer, response); encodeErr != nil {
			return fmt.Errorf("answer %s: %w", header.ServiceMethod, encodeErr)
		}
		if !decoded {
			return err // the stream cannot be read further
		}
		if err := conn.SetReadDeadline(time.Now().Add(streamHeaderTimeout)); err != nil {
			return err
		}
	}
}

// serveStreamingMethod serves the streaming method the peer names on conn.
func serveStreamingMethod(ctx context.Context, conn net.Conn, streams map[string]StreamFunc) error {
	stream := newStream(conn, requestLimits)
	var header streamHeader
	if err := stream.Receive(&header); err != nil {
		return fmt.Errorf("read the header of a stream: %w", err)
	}
	serve, known := streams[header.Method]
	if !known {
		return stream.Send(&streamAcceptance{fmt.Sprintf("Unknown rpc method: %q", header.Method)})
	}
	if err := stream.Send(&streamAcceptance{}); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	serve(ctx, stream)
	if stream.invalid != nil {
		return fmt.Errorf("stream of %s: %w", header.Method, stream.invalid)
	}
	return nil
}

// Stream is a message sequence in both directions. Send and Receive may be called concurrently with each other, but neither
// concurrently with itself.
type Stream struct {
	conn             net.Conn
	encoder          *Encoder
	decoder          *Decoder
	stopInterrupting func() // set for OpenStream's streams
	invalid          error  // Receive's ErrInvalidMessage
}

func newStream(conn net.Conn, received limits) *Stream {
	return &Stream{conn: conn, encoder: NewEncoder(conn), decoder: newDecoder(conn, received)}
}

// Send sends a message. It blocks while the peer's window is full.
func (s *Stream) Send(message any) error { return s.encoder.Encode(message) }

// Receive receives a message into the value dst points to; with a nil dst it drops the message. It returns io.EOF when the peer
// has closed its end.
func (s *Stream) Receive(dst any) error {
	err := s.decoder.Decode(dst)
	if errors.Is(err, ErrInvalidMessage) {
		s.invalid = err
	}
	return err
}

// Interrupt makes Send and Receive fail, also blocked ones. It may be called concurrently with all other methods.
func (s *Stream) Interrupt() { _ = s.conn.SetDeadline(time.Unix(1, 0)) }

// Close closes this end. It may be called twice.
func (s *Stream) Close() error {
	if s.stopInterrupting != nil {
		s.stopInterrupting()
	}
	return s.conn.Close()
}
