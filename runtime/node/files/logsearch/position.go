package logsearch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// StreamKey identifies one of a task's two outputs.
type StreamKey struct {
	AllocID string
	Task    string
	Output  logs.Stream
}

// Position is a line's place among the lines of all streams. Without a Stream, it is the place before all lines that arrived at
// Time or later.
type Position struct {
	Time      time.Time // exact to a millisecond
	Stream    StreamKey
	FileIndex int64
	Offset    int64
}

// String returns a text that ParsePosition parses.
func (p Position) String() string {
	text := strconv.FormatInt(p.Time.UnixMilli(), 10)
	if p.Stream == (StreamKey{}) {
		return text
	}
	return fmt.Sprintf("%s.%d.%d.%s.%s.%s", text, p.FileIndex, p.Offset, p.Stream.Output, p.Stream.AllocID, p.Stream.Task)
}

var errPosition = errors.New("a position is the position of a line, or a time in milliseconds since 1970")

// ParsePosition parses a text that Position.String has returned, such as the time "1763762400000".
func ParsePosition(text string) (Position, error) {
	parts := strings.SplitN(text, ".", 6)
	if len(parts) != 1 && len(parts) != 6 {
		return Position{}, errPosition
	}
	var numbers [3]int64
	for i := range min(len(parts), len(numbers)) {
		n, err := strconv.ParseUint(parts[i], 10, 53)
		if err != nil {
			return Position{}, errPosition
		}
		numbers[i] = int64(n)
	}
	p := Position{Time: time.UnixMilli(numbers[0]), FileIndex: numbers[1], Offset: numbers[2]}
	if len(parts) == 6 {
		p.Stream = StreamKey{AllocID: parts[4], Task: parts[5], Output: logs.Stream(parts[3])}
		if p.Stream.Output != logs.Stdout && p.Stream.Output != logs.Stderr || p.Stream.AllocID == "" || p.Stream.Task == "" {
			return Position{}, errPosition
		}
	}
	return p, nil
}
