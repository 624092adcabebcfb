package launch

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// ProcessPanicError means that the process of a plugin has ended with a panic. Its text is one line, because the same
// error is an event of each task that waits for the plugin; the log has the stack.
type ProcessPanicError struct {
	exitReason string   // how the process has ended
	panicLines []string // first lines of the panic on stderr: the message, and a part of the stack
}

// Error returns how the process has ended, the message of the panic, and the position in the source.
func (e *ProcessPanicError) Error() string {
	message := strings.TrimPrefix(e.panicLines[0], "panic: ")
	if position := panicSourcePosition(e.panicLines); position != "" {
		message += " (" + position + ")"
	}
	return e.exitReason + ", after a panic: " + message
}

// WithPanicLines returns the error with the first lines of the panic if it is a [ProcessPanicError], for a program that
// has no log. Other errors are returned unchanged.
func WithPanicLines(err error) error {
	if p := new(ProcessPanicError); errors.As(err, &p) {
		return fmt.Errorf("%w\n\t%s", err, strings.Join(p.panicLines, "\n\t"))
	}
	return err
}

// panicSourcePosition returns the position of the first call in the stack that is not one of the Go runtime, and "" if
// there is none.
func panicSourcePosition(lines []string) string {
	function := ""
	for _, line := range lines {
		position, isPosition := strings.CutPrefix(line, "\t")
		if !isPosition {
			function = line
			continue
		}
		if position, _, _ = strings.Cut(position, " "); position != "" && !strings.HasPrefix(function, "panic(") && !strings.HasPrefix(function, "runtime.") {
			return position
		}
	}
	return ""
}

// LoggedPanics records which panics of plugins were logged with their stacks, so that the log contains the panic of a
// plugin that crashes at each start only once. Its methods may be called concurrently; a nil LoggedPanics records
// nothing.
type LoggedPanics struct {
	mu          sync.Mutex
	loggedByKey map[string]bool
}

// maxLoggedPanics limits the memory of LoggedPanics, because plugins write the texts.
const maxLoggedPanics = 100

// addressPattern matches the parts of a stack that differ between two processes with the same panic: addresses, and
// numbers of goroutines.
var addressPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`0x[0-9a-f]+|goroutine \d+`) })

// addIfNew records a panic of a plugin, and reports whether it was not recorded before.
func (r *LoggedPanics) addIfNew(plugin string, lines []string) bool {
	if r == nil {
		return true
	}
	key := plugin + "\n" + addressPattern().ReplaceAllString(strings.Join(lines, "\n"), "")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loggedByKey[key] {
		return false
	}
	if r.loggedByKey == nil || len(r.loggedByKey) == maxLoggedPanics {
		r.loggedByKey = make(map[string]bool)
	}
	r.loggedByKey[key] = true
	return true
}

// panicFlushDelay is the maximum time between the first line of a panic and the log of it: a panic may have fewer lines
// than panicLogger waits for.
const panicFlushDelay = 200 * time.Millisecond

// panicLogger logs the lines of the panic of one process, unless the same panic of an earlier process was logged.
type panicLogger struct {
	loggedPanics *LoggedPanics
	pluginName   string
	logger       hclog.Logger

	mu            sync.Mutex
	pendingLines  []string    // lines that are not logged yet, because too few have arrived to identify the panic
	flushTimer    *time.Timer // calls flush; nil before the first line
	isNewPanicSet bool        // isNewPanic is set
	isNewPanic    bool        // the panic was not logged for an earlier process
}

// addLine adds the next line of the panic. It logs the lines when enough have arrived to identify the panic.
func (p *panicLogger) addLine(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flushTimer == nil {
		p.flushTimer = time.AfterFunc(panicFlushDelay, p.flush)
	}
	p.pendingLines = append(p.pendingLines, line)
	if p.isNewPanicSet || len(p.pendingLines) == maxPanicLines {
		p.flushLocked()
	}
}

// flush logs the pending lines, unless the panic was logged before.
func (p *panicLogger) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushLocked()
}

func (p *panicLogger) flushLocked() {
	if len(p.pendingLines) == 0 {
		return
	}
	if !p.isNewPanicSet {
		p.isNewPanicSet, p.isNewPanic = true, p.loggedPanics.addIfNew(p.pluginName, p.pendingLines)
	}
	if p.isNewPanic {
		for _, line := range p.pendingLines {
			p.logger.Error(line)
		}
	}
	p.pendingLines = nil
}
