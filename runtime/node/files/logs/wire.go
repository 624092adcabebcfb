package logs

import "github.com/nomad-lite/nomad-lite/internal/framing"

// protocolVersion is the version of the messages between the agent and the collector process. A
// change of their form or meaning needs another version, except in the request Quit, which replaces
// a process of another version: its form is stable.
const protocolVersion = 2

// messageLimits are the limits of one message.
var messageLimits = framing.Limits{MaxSize: 32 << 10, MaxDescriptors: maxMessageFDs}

const maxMessageFDs = 2 // the FIFO and the log directory of a stream

type opCode string

const (
	opStart     opCode = "Start"     // request with two descriptors: the FIFO and the log directory
	opStop      opCode = "Stop"      // stop request; the reply follows when the stream has ended
	opSubscribe opCode = "Subscribe" // subscribe request without a reply; opOutput follows when the stream has more output than the position in the message
	opQuit      opCode = "Quit"      // quit request without a reply: the process exits, so that another one can serve the streams
	opIdle      opCode = "Idle"      // idle request without a reply: the process exits unless it has streams
	opStats     opCode = "Stats"     // stats request; the reply has StreamCount, WrittenBytes and LostBytes
	opReply     opCode = "Reply"

	// Events: messages of the collector that are not replies.
	opOutput opCode = "Output"
	opLoss   opCode = "Loss"
	opEnd    opCode = "End" // the writers of a stream with a HasWriter reply have closed the FIFO
)

// message is the format of all messages after the hello messages, in both directions. The json tags keep the keys of
// earlier collector processes.
type message struct {
	Op                         opCode
	ID                         uint64       `json:",omitempty"` // a reply has the same ID as its request
	StreamKey                  streamKey    `json:"Key,omitzero"`
	Limits                     StreamLimits `json:",omitzero"`          // in a start request
	GraceMillis                int64        `json:",omitempty"`         // in a stop request: milliseconds until the stream ends even if it has a writer
	KeepReadingWhileWriterOpen bool         `json:"KeepOpen,omitempty"` // in a stop request: continue to read while the FIFO has a writer
	HasWriter                  bool         `json:",omitempty"`         // in the reply to a stop request: the FIFO has a writer

	// In a subscribe request, FileIndex and FileOffset are the file and the offset up to which the follower has read;
	// in an output event and in the reply to a stop request, they are the newest file of the stream and its size.
	FileIndex  int64 `json:"Index,omitempty"`
	FileOffset int64 `json:"Offset,omitempty"`

	Error          string `json:",omitempty"`
	DroppedBytes   int64  `json:"Bytes,omitempty"` // in a loss event, as in OutputLoss
	WritingResumed bool   `json:",omitempty"`      // in a loss event, as in OutputLoss

	// In the reply to a stats request.
	StreamCount  int   `json:"Streams,omitempty"` // number of streams at present
	WrittenBytes int64 `json:"Written,omitempty"` // bytes of output written since the start of the process
	LostBytes    int64 `json:"Lost,omitempty"`    // bytes of output dropped since the start of the process
}
