package logs

import (
	"encoding/json"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// The agent and the collector communicate over a unix socket that keeps message boundaries
// (SOCK_SEQPACKET): one JSON message in each packet, with the descriptors that belong to it.
const (
	maxMessage = 32 << 10
	maxFDs     = 2
)

type op string

const (
	opHello     op = "hello"
	opStart     op = "start" // with two descriptors: the FIFO and the log directory
	opStop      op = "stop"  // the reply follows when the stream has ended
	opSubscribe op = "arm"   // no reply; opOutput follows when the stream has more output than the position in the message
	opQuit      op = "quit"  // no reply: the process exits, and another one takes over
	opIdle      op = "idle"  // no reply: the process exits unless it has streams
	opReply     op = "reply"

	// Events: messages of the collector that are not replies.
	opOutput op = "output"
	opLoss   op = "loss"
	opEnd    op = "end" // the writers of a stream with an Open reply have closed the FIFO
)

// message is the format of all messages, in both directions.
type message struct {
	Op     op     `json:"op"`
	ID     uint64 `json:"id,omitempty"` // same number in a request and its reply
	Key    key    `json:"key,omitzero"`
	Limits Limits `json:"limits,omitzero"` // start
	Grace  int64  `json:"grace,omitempty"` // stop: milliseconds
	Keep   bool   `json:"keep,omitempty"`  // stop: read on while the FIFO has a writer
	Open   bool   `json:"open,omitempty"`  // reply to stop: the FIFO has a writer

	Index  int64 `json:"index,omitempty"` // arm, output, replies: number of the newest file
	Offset int64 `json:"offset,omitempty"`

	Error   string     `json:"error,omitempty"`
	Bytes   int64      `json:"bytes,omitempty"` // loss
	Over    bool       `json:"over,omitempty"`  // loss
	Process process.ID `json:"process,omitzero"`
}

func decode(b []byte) (*message, error) {
	m := &message{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	return m, nil
}
