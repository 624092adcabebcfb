package logs

import (
	"encoding/json"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/keeper"
)

// The agent and the collector talk over a unix socket that keeps messages apart
// (SOCK_SEQPACKET): one JSON message in each, with the descriptors that belong to it.
const (
	maxMessage = 32 << 10
	maxFDs     = 2
)

type op string

const (
	opHello op = "hello"
	opStart op = "start" // with two descriptors: the FIFO and the log directory
	opStop  op = "stop"  // answered once the stream has ended
	opArm   op = "arm"   // no answer; opOutput follows when there is more than said
	opQuit  op = "quit"  // no answer: the process ends, and another one goes on
	opIdle  op = "idle"  // no answer: the process ends unless it has streams
	opReply op = "reply"

	// From the collector, on its own accord.
	opOutput op = "output"
	opLoss   op = "loss"
	opEnd    op = "end" // the writers of a stream whose stop was answered with Open are gone
)

// message is every message, in both directions.
type message struct {
	Op     op     `json:"op"`
	ID     uint64 `json:"id,omitempty"` // of a request and its reply
	Key    key    `json:"key,omitzero"`
	Limits Limits `json:"limits,omitzero"` // start
	Grace  int64  `json:"grace,omitempty"` // stop: milliseconds
	Keep   bool   `json:"keep,omitempty"`  // stop: read on while there is a writer
	Open   bool   `json:"open,omitempty"`  // reply to stop: there is one

	Index  int64 `json:"index,omitempty"` // arm, output, replies: the newest file
	Offset int64 `json:"offset,omitempty"`

	Error   string         `json:"error,omitempty"`
	Bytes   int64          `json:"bytes,omitempty"` // loss
	Over    bool           `json:"over,omitempty"`  // loss
	Process keeper.Process `json:"process,omitzero"`
}

func decode(b []byte) (*message, error) {
	m := &message{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	return m, nil
}
