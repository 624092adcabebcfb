package logs

import (
	"encoding/json"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/process"
)

// The agent and the collector communicate over a unix socket that keeps message boundaries
// (SOCK_SEQPACKET): one JSON message in each packet, with the descriptors that belong to it.
const (
	maxMessageSize = 32 << 10
	maxFDs         = 2
)

type opCode string

const (
	opHello     opCode = "hello"
	opStart     opCode = "start" // request with two descriptors: the FIFO and the log directory
	opStop      opCode = "stop"  // stop request; the reply follows when the stream has ended
	opSubscribe opCode = "arm"   // subscribe request without a reply; opOutput follows when the stream has more output than the position in the message
	opQuit      opCode = "quit"  // quit request without a reply: the process exits, and another one takes over
	opIdle      opCode = "idle"  // idle request without a reply: the process exits unless it has streams
	opStats     opCode = "stats" // the reply has Streams, Written and Lost
	opReply     opCode = "reply"

	// Events: messages of the collector that are not replies.
	opOutput opCode = "output"
	opLoss   opCode = "loss"
	opEnd    opCode = "end" // the writers of a stream with a HasWriter reply have closed the FIFO
)

// message is the format of all messages, in both directions.
type message struct {
	Op          opCode `json:"op"`
	ID          uint64 `json:"id,omitempty"` // a reply has the same ID as its request
	Key         key    `json:"key,omitzero"`
	Limits      Limits `json:"limits,omitzero"` // start
	GraceMillis int64  `json:"grace,omitempty"` // stop: milliseconds
	KeepOpen    bool   `json:"keep,omitempty"`  // in a stop request: continue to read while the FIFO has a writer
	HasWriter   bool   `json:"open,omitempty"`  // in the reply to a stop request: the FIFO has a writer

	Index  int64 `json:"index,omitempty"` // in subscribe, output and replies: number of the newest file
	Offset int64 `json:"offset,omitempty"`

	Error          string     `json:"error,omitempty"`
	Bytes          int64      `json:"bytes,omitempty"` // loss
	WritingResumed bool       `json:"over,omitempty"`  // loss
	Process        process.ID `json:"process,omitzero"`

	// Counts of the process since its start, in the reply to a stats request.
	Streams int   `json:"streams,omitempty"`
	Written int64 `json:"written,omitempty"` // bytes
	Lost    int64 `json:"lost,omitempty"`    // bytes
}

func decodeMessage(b []byte) (*message, error) {
	m := &message{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	return m, nil
}
