package wire

import (
	"bufio"
	"errors"
	"io"
	"reflect"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

const (
	// maxMessageBytes limits one message, because a peer announces the lengths of its values.
	maxMessageBytes = 64 << 20
	maxMessageDepth = 100 // maximum depth of maps and arrays in a message
)

// ErrMessageTooLarge is the error of a Decoder for a message of more than 64 MiB.
var ErrMessageTooLarge = errors.New("message is larger than 64 MiB")

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
	in      *limitedReader
	decoder *codec.Decoder
	limit   int // bytes of one message
}

// NewDecoder returns a Decoder that reads from in.
func NewDecoder(in io.Reader) *Decoder {
	limited := &limitedReader{in: bufio.NewReader(in)}
	return &Decoder{limited, codec.NewDecoder(limited, handle), maxMessageBytes}
}

// Decode reads the next message into the value that dst points to; with a nil dst it drops the message. Keys of the
// message that have no field are ignored, and fields without a key keep their values. Decode returns io.EOF at the end
// of the stream and ErrMessageTooLarge for a message over the limit. After any error the stream cannot be read further.
func (d *Decoder) Decode(dst any) error {
	if _, err := d.in.in.Peek(1); err != nil {
		return err
	}
	d.in.left = d.limit
	if dst == nil {
		var dropped any
		dst = &dropped
	}
	err := d.decoder.Decode(dst)
	switch {
	case d.in.left <= 0 && err != nil:
		return ErrMessageTooLarge
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	return err
}

// DecodeBytes reads the message in b into the value that dst points to.
func DecodeBytes(b []byte, dst any) error { return codec.NewDecoderBytes(b, handle).Decode(dst) }

// EncodeBytes returns the message of v.
func EncodeBytes(v any) ([]byte, error) {
	var b []byte
	err := codec.NewEncoderBytes(&b, handle).Encode(v)
	return b, err
}

// limitedReader ends a message after left bytes.
type limitedReader struct {
	in   *bufio.Reader
	left int // bytes that the current message may still have
}

func (r *limitedReader) Read(b []byte) (int, error) {
	if r.left <= 0 {
		return 0, ErrMessageTooLarge
	}
	n, err := r.in.Read(b[:min(len(b), r.left)])
	r.left -= n
	return n, err
}

func (r *limitedReader) ReadByte() (byte, error) {
	if r.left <= 0 {
		return 0, ErrMessageTooLarge
	}
	r.left--
	return r.in.ReadByte()
}

func (r *limitedReader) UnreadByte() error {
	r.left++
	return r.in.UnreadByte()
}
