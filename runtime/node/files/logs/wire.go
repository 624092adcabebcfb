package logs

import "github.com/nomad-lite/nomad-lite/internal/framing"

// protocolVersion is the version of the messages between the agent and the collector process. A
// change of their form or meaning needs another version, except in the request Quit, which replaces
// a process of another version: its form is stable.
const protocolVersion = 2

// messageLimits: a stream has two descriptors.
var messageLimits = framing.Limits{Size: 32 << 10, Descriptors: maxMessageFDs}

const maxMessageFDs = 2

type opCode string

const (
	opStart     opCode = "Start"     // request with two descriptors: the FIFO and the log directory
	opStop      opCode = "Stop"      // stop request; the reply follows when the stream has ended
	opSubscribe opCode = "Subscribe" // subscribe request without a reply; opOutput follows when the stream has more output than the position in the message
	opQuit      opCode = "Quit"      // quit request without a reply: the process exits, and another one takes over
	opIdle      opCode = "Idle"      // idle request without a reply: the process exits unless it has streams
	opStats     opCode = "Stats"     // the reply has Streams, Written and Lost
	opReply     opCode = "Reply"

	// Events: messages of the collector that are not replies.
	opOutput opCode = "Output"
	opLoss   opCode = "Loss"
	opEnd    opCode = "End" // the writers of a stream with a HasWriter reply have closed the FIFO
)

// message is the format of all messages after the hello messages, in both directions.
type message struct {
	Op          opCode
	ID          uint64 `json:",omitempty"` // a reply has the same ID as its request
	Key         key    `json:",omitzero"`
	Limits      Limits `json:",omitzero"`  // start
	GraceMillis int64  `json:",omitempty"` // stop: milliseconds
	KeepOpen    bool   `json:",omitempty"` // in a stop request: continue to read while the FIFO has a writer
	HasWriter   bool   `json:",omitempty"` // in the reply to a stop request: the FIFO has a writer

	Index  int64 `json:",omitempty"` // in subscribe, output and replies: number of the newest file
	Offset int64 `json:",omitempty"`

	Error          string `json:",omitempty"`
	Bytes          int64  `json:",omitempty"` // loss
	WritingResumed bool   `json:",omitempty"` // loss

	// Counts of the process since its start, in the reply to a stats request.
	Streams int   `json:",omitempty"`
	Written int64 `json:",omitempty"` // bytes
	Lost    int64 `json:",omitempty"` // bytes
}
