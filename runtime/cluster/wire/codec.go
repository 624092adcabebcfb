package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// limits are limits of one message: a peer announces the lengths of its values, and a value of one byte can need hundreds of
// bytes of memory.
type limits struct {
	bytes  int
	values int // keys count too
}

var (
	// responseLimits are the limits of responses to calls of this end. 512 Ki values need some hundred MiB at most.
	responseLimits = limits{bytes: 64 << 20, values: 512 << 10}
	// requestLimits are the limits of what the peer sends on its own, on many streams at the same time.
	requestLimits = limits{bytes: 512 << 10, values: 4 << 10}
)

const maxMessageDepth = 100 // maximum depth of maps and arrays in a message

var (
	// ErrInvalidMessage is the error of a Decoder for a message that cannot be decoded into its destination.
	ErrInvalidMessage = errors.New("invalid message")
	// ErrMessageTooLarge is the error of a Decoder for a message over a limit. It is an ErrInvalidMessage.
	ErrMessageTooLarge = fmt.Errorf("%w: it is too large", ErrInvalidMessage)
)

// handle has the settings of Nomad's messages: strings and bytes are raw, without str8 and bin; a struct is a map whose
// keys are the exact names of its fields; a time is the result of its MarshalBinary.
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

// Encode writes values, one message each, in one call of Write.
func (e *Encoder) Encode(values ...any) error { return e.encodeAfter(nil, values...) }

// encodeAfter writes prefix and then values in one call of Write.
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

// Decoder reads messages from a stream. It reads ahead, so that a stream must have one Decoder for its whole life. It must
// not be used concurrently.
type Decoder struct {
	in      *bufio.Reader
	limits  limits
	message []byte // the present message; its memory is used again
	decoder *codec.Decoder
}

// NewDecoder returns a Decoder that reads from in. It accepts messages of at most 64 MiB and 512 Ki values.
func NewDecoder(in io.Reader) *Decoder { return newDecoder(in, responseLimits) }

func newDecoder(in io.Reader, l limits) *Decoder {
	return &Decoder{in: bufio.NewReader(in), limits: l, decoder: codec.NewDecoderBytes(nil, handle)}
}

// Decode reads the next message into the value that dst points to; with a nil dst it drops the message. Keys of the
// message that have no field are ignored, and fields without a key keep their values. Decode returns io.EOF at the end
// of the stream, and ErrInvalidMessage or ErrMessageTooLarge for what is no message for dst. After any error the stream cannot be read further.
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

// DecodeBytes reads the message in b into the value that dst points to.
func DecodeBytes(b []byte, dst any) error { return codec.NewDecoderBytes(b, handle).Decode(dst) }

// EncodeBytes returns the message of v.
func EncodeBytes(v any) ([]byte, error) {
	var b []byte
	err := codec.NewEncoderBytes(&b, handle).Encode(v)
	return b, err
}
