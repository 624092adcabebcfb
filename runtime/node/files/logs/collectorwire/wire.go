package collectorwire

import "github.com/nomad-lite/nomad-lite/internal/framing"

// ProtocolVersion is the version of the messages between the agent and the collector process. A change in form or
// meaning needs another version, except in the request Quit, which replaces a process with another version: its form
// is stable.
const ProtocolVersion = 3

// MessageLimits are the limits for one message.
var MessageLimits = framing.Limits{MaxSize: 32 << 10, MaxDescriptors: MaxMessageFDs}

// MaxMessageFDs is how many descriptors one message can have: a task's two FIFOs and its log directory.
const MaxMessageFDs = 3

// Op is a message's operation.
type Op string

const (
	OpStart     Op = "Start"     // request with the task's FIFOs and its log directory; the reply has no error if all streams were started
	OpStop      Op = "Stop"      // stop request; the reply follows when the stream has ended
	OpSubscribe Op = "Subscribe" // subscribe request without a reply; OpOutput follows when the stream has more output than the position in the message
	OpQuit      Op = "Quit"      // quit request without a reply: the process exits, so that another one can serve the streams
	OpIdle      Op = "Idle"      // idle request without a reply: the process exits unless it has streams
	OpStats     Op = "Stats"     // stats request; the reply has StreamCount, WrittenBytes and LostBytes
	OpReply     Op = "Reply"

	// Events: collector messages other than replies.
	OpOutput Op = "Output"
	OpLoss   Op = "Loss"
	OpEnd    Op = "End" // the writers have closed the FIFO of a stream with a HasWriter reply
)

// Message is the format for all messages after the hello messages, in both directions. The json tags keep earlier
// collector processes' keys.
type Message struct {
	Op                         Op
	ID                         uint64    `json:",omitempty"`         // a reply has the same ID as its request
	StreamKey                  StreamKey `json:"Key,omitzero"`       // in a start request without the stream
	GraceMillis                int64     `json:",omitempty"`         // in a stop request: milliseconds until the stream ends even if it has a writer
	KeepReadingWhileWriterOpen bool      `json:"KeepOpen,omitempty"` // in a stop request: continue to read while the FIFO has a writer
	HasWriter                  bool      `json:",omitempty"`         // in the reply to a stop request: the FIFO has a writer

	// In a start request, Limits has the task's streams to start. Their FIFOs are in the order of the streams' names, and the log
	// directory is the last descriptor.
	Limits map[Stream]StreamLimits `json:",omitempty"`

	// In a subscribe request, FileIndex and FileOffset are the file and the offset up to which the follower has read;
	// in an output event and in the reply to a stop request, they are the stream's newest file and its size.
	FileIndex  int64 `json:"Index,omitempty"`
	FileOffset int64 `json:"Offset,omitempty"`

	Error          string `json:",omitempty"`
	DroppedBytes   int64  `json:"Bytes,omitempty"` // in a loss event, as in logs.OutputLoss
	WritingResumed bool   `json:",omitempty"`      // in a loss event, as in logs.OutputLoss

	// In the reply to a stats request.
	StreamCount  int   `json:"Streams,omitempty"` // streams at present
	WrittenBytes int64 `json:"Written,omitempty"` // output bytes written since the process start
	LostBytes    int64 `json:"Lost,omitempty"`    // output bytes dropped since the process start
}
