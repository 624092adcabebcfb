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

// PanicError means that the process of a plugin has ended with a panic. Its text is one line, because the same
// error is an event of each task that waits for the plugin; the log has the stack.
type PanicError struct {
	reason string   // how the process has ended
	lines  []string // first lines of the panic on stderr: the message, and a part of the stack
}

// Error returns how the process has ended, the message of the panic, and the position in the source.
func (e *PanicError) Error() string {
	message := strings.TrimPrefix(e.lines[0], "panic: ")
	if position := panicPosition(e.lines); position != "" {
		message += " (" + position + ")"
	}
	return e.reason + ", after a panic: " + message
}

// WithPanicLines returns the error with the first lines of the panic if it is a [PanicError], for a program that
// has no log. Other errors are returned unchanged.
func WithPanicLines(err error) error {
	if p := new(PanicError); errors.As(err, &p) {
		return fmt.Errorf("%w\n\t%s", err, strings.Join(p.lines, "\n\t"))
	}
	return err
}

// panicPosition returns the position of the first call in the stack that is not one of the Go runtime, and "" if
// there is none.
func panicPosition(lines []string) string {
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

// PanicReports records which panics of plugins were logged with their stacks, so that the log contains the panic of a
// plugin that crashes at each start only once. Its methods may be called concurrently; a nil PanicReports records nothing.
type PanicReports struct {
	mu           sync.Mutex
	loggedPanics map[string]bool
}

// maxPanicReports limits the memory of PanicReports, because plugins write the texts.
const maxPanicReports = 100

// addressPattern matches the parts of a stack that differ between two processes with the same panic: addresses, and
// numbers of goroutines.
var addressPattern = regexp.MustCompile(`0x[0-9a-f]+|goroutine \d+`)

// recordIfNew records a panic of a plugin, and reports whether it was not recorded before.
func (r *PanicReports) recordIfNew(plugin string, lines []string) bool {
	if r == nil {
		return true
	}
	key := plugin + "\n" + addressPattern.ReplaceAllString(strings.Join(lines, "\n"), "")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loggedPanics[key] {
		return false
	}
	if r.loggedPanics == nil || len(r.loggedPanics) == maxPanicReports {
		r.loggedPanics = make(map[string]bool)
	}
	r.loggedPanics[key] = true
	return true
}

// panicFlushDelay is the maximum time between the first line of a panic and the log of it: a panic may have fewer lines
// than panicLog waits for.
const panicFlushDelay = 200 * time.Millisecond

// panicLog logs the lines of the panic of one process, unless the same panic of an earlier process was logged.
type panicLog struct {
	panicReports *PanicReports
	pluginName   string
	logger       hclog.Logger

	mu               sync.Mutex
	pendingLines     []string    // lines that are not logged yet, because too few have arrived to identify the panic
	flushTimer       *time.Timer // calls flush; nil before the first line
	hasComparedPanic bool        // isNewPanic is set
	isNewPanic       bool        // the panic was not logged for an earlier process
}

// addLine adds the next line of the panic. It logs the lines when enough have arrived to identify the panic.
func (p *panicLog) addLine(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flushTimer == nil {
		p.flushTimer = time.AfterFunc(panicFlushDelay, p.flush)
	}
	p.pendingLines = append(p.pendingLines, line)
	if p.hasComparedPanic || len(p.pendingLines) == maxPanicLines {
		p.flushLocked()
	}
}

// flush logs the pending lines, unless the panic was logged before.
func (p *panicLog) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushLocked()
}

func (p *panicLog) flushLocked() {
	if len(p.pendingLines) == 0 {
		return
	}
	if !p.hasComparedPanic {
		p.hasComparedPanic, p.isNewPanic = true, p.panicReports.recordIfNew(p.pluginName, p.pendingLines)
	}
	if p.isNewPanic {
		for _, line := range p.pendingLines {
			p.logger.Error(line)
		}
	}
	p.pendingLines = nil
}
