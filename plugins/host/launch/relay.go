package launch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/redact"
)

const (
	// maxLineSize is the maximum length of a line that is logged, in bytes. Further bytes of the line are counted and
	// dropped.
	maxLineSize = 64 << 10
	// maxNonJSONLineSize is the maximum length of a logged line that is not an hclog record, in
	// bytes.
	maxNonJSONLineSize = 4 << 10

	maxTailLines    = 6   // lines of stderr in an error
	maxTailLineSize = 300 // bytes of one line of stderr in an error
	maxPanicLines   = 10  // lines of a panic in an error, and lines that identify a panic
)

// relayStderrToLog logs the lines of a plugin's stderr without the secrets, and returns when r ends. It uses a limited amount of memory,
// however much the plugin writes.
func relayStderrToLog(r io.Reader, secrets *redact.Values, logger hclog.Logger, t *stderrTail, panics *panicLogger) {
	defer panics.flush()
	br := bufio.NewReaderSize(r, maxLineSize)
	inPanic := false
	for {
		line, err := br.ReadSlice('\n')
		dropped := 0
		if err == bufio.ErrBufferFull {
			// line is copied because ReadSlice reuses the buffer in the next call.
			line = slices.Clone(line)
			for err == bufio.ErrBufferFull {
				var droppedPart []byte
				droppedPart, err = br.ReadSlice('\n')
				dropped += len(droppedPart)
			}
		}
		if len(line) > 0 {
			inPanic = logStderrLine(secrets.Text(strings.TrimRight(string(line), "\r\n")), dropped, inPanic, logger, t, panics)
		}
		if err != nil {
			return
		}
	}
}

// logStderrLine logs one line of stderr, and reports whether the next line is part of a panic. inPanic means
// that the line is part of a panic, and droppedBytes is the number of bytes by which it was shortened.
func logStderrLine(line string, droppedBytes int, inPanic bool, logger hclog.Logger, t *stderrTail, panics *panicLogger) (nextInPanic bool) {
	if line == "" && droppedBytes == 0 {
		return inPanic
	}
	if droppedBytes == 0 && strings.HasPrefix(line, "{") {
		if rec, ok := parseHclogRecord(line); ok {
			t.addLine(rec.String(), false)
			rec.logTo(logger)
			return inPanic
		}
	}

	if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
		inPanic = true
	}
	t.addLine(line, inPanic)
	if len(line) > maxNonJSONLineSize {
		droppedBytes += len(line) - maxNonJSONLineSize
		line = line[:maxNonJSONLineSize]
	}
	if inPanic {
		panics.addLine(escapeNonGraphic(line))
		return true
	}
	level := hclog.Debug
	if strings.HasPrefix(line, "[") {
		for _, p := range levelPrefixes {
			if rest, ok := strings.CutPrefix(line, p.text); ok {
				level, line = p.level, strings.TrimLeft(rest, " ")
				break
			}
		}
	}
	if level < logger.GetLevel() {
		return false
	}
	if droppedBytes > 0 {
		logger.Log(level, escapeNonGraphic(line), "dropped_bytes", droppedBytes)
	} else {
		logger.Log(level, escapeNonGraphic(line))
	}
	return false
}

var levelPrefixes = []struct {
	text  string
	level hclog.Level
}{
	{"[TRACE]", hclog.Trace}, {"[DEBUG]", hclog.Debug}, {"[INFO]", hclog.Info}, {"[WARN]", hclog.Warn}, {"[ERROR]", hclog.Error},
}

// hclogRecord is one line in hclog's JSON form.
type hclogRecord struct {
	level     hclog.Level
	module    string
	timestamp string
	message   string
	keyValues []any
}

// logTo logs the record. It adds the record's module or time as an attribute only if they
// differ from the logger's name or the current time.
func (r hclogRecord) logTo(logger hclog.Logger) {
	pairs := r.keyValues
	if plugin, part, parts := strings.Cut(r.module, "."); r.module != "" && !strings.HasSuffix(logger.Name(), "."+plugin) {
		pairs = append(pairs, "@module", escapeNonGraphic(r.module))
	} else if parts {
		logger = logger.Named(escapeNonGraphic(part))
	}
	if at, err := time.Parse(time.RFC3339Nano, r.timestamp); r.timestamp != "" && (err != nil || time.Since(at).Abs() > time.Second) {
		pairs = append(pairs, "timestamp", escapeNonGraphic(r.timestamp))
	}
	logger.Log(r.level, escapeNonGraphic(r.message), pairs...)
}

// parseHclogRecord parses a line in hclog's JSON format. It returns false for other lines,
// including JSON whose fields have other types.
func parseHclogRecord(line string) (hclogRecord, bool) {
	var raw map[string]any
	dec := json.NewDecoder(strings.NewReader(line))
	dec.UseNumber()
	if dec.Decode(&raw) != nil || dec.InputOffset() != int64(len(line)) {
		return hclogRecord{}, false
	}
	name, ok := raw["@level"].(string)
	if !ok {
		return hclogRecord{}, false
	}
	level := hclog.LevelFromString(name)
	if level == hclog.NoLevel || level == hclog.Off {
		return hclogRecord{}, false
	}
	message, ok := raw["@message"].(string)
	if !ok && raw["@message"] != nil {
		return hclogRecord{}, false
	}
	rec := hclogRecord{level: level, message: message}
	rec.module, _ = raw["@module"].(string)
	rec.timestamp, _ = raw["@timestamp"].(string)
	delete(raw, "@level")
	delete(raw, "@module")
	delete(raw, "@message")
	delete(raw, "@timestamp")
	for _, k := range slices.Sorted(maps.Keys(raw)) {
		rec.keyValues = append(rec.keyValues, escapeNonGraphic(k), formatLogValue(raw[k]))
	}
	return rec, true
}

// formatLogValue returns the value unchanged if hclog prints it well, and its JSON otherwise.
func formatLogValue(v any) any {
	switch v := v.(type) {
	case string, bool, nil:
		return v
	case json.Number:
		return v.String()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// String returns the message, with the value of the key "error" if there is one.
func (r hclogRecord) String() string {
	s := r.message
	for i := 0; i+1 < len(r.keyValues); i += 2 {
		if r.keyValues[i] == "error" {
			s = fmt.Sprintf("%s: %v", s, r.keyValues[i+1])
		}
	}
	return s
}

// escapeNonGraphic returns text with escape sequences in place of control characters, which could change a terminal or
// start a new line in the log.
func escapeNonGraphic(s string) string {
	ok := utf8.ValidString(s)
	for _, r := range s {
		if !ok {
			break
		}
		ok = r == '\t' || strconv.IsGraphic(r)
	}
	if ok {
		return s
	}
	q := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// stderrTail keeps the last lines of a plugin's stderr, and the first lines of its panic. Its methods may be called
// concurrently.
type stderrTail struct {
	mu         sync.Mutex
	lastLines  []tailLine
	panicLines []string
}

type tailLine struct {
	text   string
	readAt time.Time
}

func (t *stderrTail) addLine(line string, inPanic bool) {
	if strings.TrimSpace(line) == "" {
		return
	}
	if len(line) > maxTailLineSize {
		line = line[:maxTailLineSize] + "…"
	}
	line = escapeNonGraphic(strings.TrimRight(line, " \t"))
	t.mu.Lock()
	defer t.mu.Unlock()
	if inPanic && len(t.panicLines) < maxPanicLines {
		t.panicLines = append(t.panicLines, line)
	}
	if len(t.lastLines) == maxTailLines {
		t.lastLines = slices.Delete(t.lastLines, 0, 1)
	}
	t.lastLines = append(t.lastLines, tailLine{line, time.Now()})
}

// panicOrLastLines returns the lines of the plugin's panic, or its last lines since the given time if there was no panic.
func (t *stderrTail) panicOrLastLines(since time.Time) (lines []string, isPanic bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.panicLines) > 0 {
		return slices.Clone(t.panicLines), true
	}
	for _, line := range t.lastLines {
		if !line.readAt.Before(since) {
			lines = append(lines, line.text)
		}
	}
	return lines, false
}
