package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// limits limit one message: a peer announces its values' lengths, and a one-byte value can need hundreds of bytes of memory.
type limits struct {
	bytes  int
	values int // keys count too
}

var (
	// responseLimits limit responses to this end's calls. 512 Ki values need some hundred MiB at most.
	responseLimits = limits{bytes: 64 << 20, values: 512 << 10}
	// requestLimits limit what the peer sends on its own, on many streams at the same time.
	requestLimits = limits{bytes: 512 << 10, values: 4 << 10}
)

const maxMessageDepth = 100 // maximum depth of maps and arrays in a message

var (
	// ErrInvalidMessage means a Decoder cannot decode a message into its destination.
	ErrInvalidMessage = errors.New("invalid message")
	// ErrMessageTooLarge means a Decoder's message is over a limit. It is an ErrInvalidMessage.
	ErrMessageTooLarge = fmt.Errorf("%w: it is too large", ErrInvalidMessage)
)

// handle has the settings for Nomad's messages: strings and bytes are raw, without str8 and bin; a struct is a map with the exact
// field names as keys; a time is the result of its MarshalBinary.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.TypeInfos = codec.NewTypeInfos([]string{"codec"})
	h.TimeNotBuiltin = true
	h.MaxDepth = maxMessageDepth
	return h
}()

// Encoder writes messages to a stream. It must not be used concurrently.
type Encoder struct {
	out     io.Writer
	message []byte
	encoder *codec.Encoder
}

// NewEncoder returns an Encoder that writes to out.
func NewEncoder(out io.Writer) *Encoder {
	e := &Encoder{out: out}
	e.encoder = codec.NewEncoderBytes(&e.message, handle)
	return e
}

// Encode writes values, one message each, in one Write call.
func (e *Encoder) Encode(values ...any) error { return e.encodeAfter(nil, values...) }

// encodeAfter writes prefix and then values in one Write call.
func (e *Encoder) encodeAfter(prefix []byte, values ...any) error {
	out := prefix
	for _, v := range values {
		e.encoder.ResetBytes(&e.message)
		if err := e.encoder.Encode(v); err != nil {
			return err
		}
		out = append(out, e.message...)
	}
	_, err := e.out.Write(out)
	return err
}

// Decoder reads messages from a stream. It reads ahead, so a stream must have one Decoder for its whole life. It must not be used
// concurrently.
type Decoder struct {
	in      *bufio.Reader
	limits  limits
	message []byte // the present message; its memory is used again
	decoder *codec.Decoder
}

// NewDecoder returns a Decoder that reads from in. It accepts messages up to 64 MiB and 512 Ki values.
func NewDecoder(in io.Reader) *Decoder { return newDecoder(in, responseLimits) }

func newDecoder(in io.Reader, l limits) *Decoder {
	return &Decoder{in: bufio.NewReader(in), limits: l, decoder: codec.NewDecoderBytes(nil, handle)}
}

// Decode reads the next message into the value dst points to; with a nil dst it drops the message. Message keys without a field
// are ignored, and fields without a key keep their values. Decode returns io.EOF at the stream's end, and ErrInvalidMessage or
// ErrMessageTooLarge for anything but a message for dst. After any error the stream cannot be read further.
func (d *Decoder) Decode(dst any) error {
	if _, err := d.in.Peek(1); err != nil {
		return err
	}
	if cap(d.message) > maxKeptBytes {
		d.message = nil
	}
	d.message = d.message[:0]
	values := d.limits.values
	if err := d.readValue(&values, 0); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	if dst == nil {
		return nil
	}
	d.decoder.ResetBytes(d.message)
	if err := d.decoder.Decode(dst); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	return nil
}

// DecodeBytes reads the message in b into the value dst points to.
func DecodeBytes(b []byte, dst any) error { return codec.NewDecoderBytes(b, handle).Decode(dst) }

// EncodeBytes returns v's message.
func EncodeBytes(v any) ([]byte, error) {
	var b []byte
	err := codec.NewEncoderBytes(&b, handle).Encode(v)
	return b, err
}
