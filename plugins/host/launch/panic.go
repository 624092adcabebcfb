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
	lines  []string // first lines of the panic
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

// PanicReports records which panics of plugins were logged with their stacks. A plugin that is started again and
// again has the same panic each time. Its methods may be called concurrently; a nil PanicReports records nothing.
type PanicReports struct {
	mu     sync.Mutex
	logged map[string]bool
}

// maxPanicReports limits the memory of PanicReports, because plugins write the texts.
const maxPanicReports = 100

// addressPattern matches what differs between two processes with the same panic: addresses, and numbers of goroutines.
var addressPattern = regexp.MustCompile(`0x[0-9a-f]+|goroutine \d+`)

// isNew reports whether a panic of a plugin was not recorded yet, and records it.
func (r *PanicReports) isNew(plugin string, lines []string) bool {
	if r == nil {
		return true
	}
	key := plugin + "\n" + addressPattern.ReplaceAllString(strings.Join(lines, "\n"), "")
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logged[key] {
		return false
	}
	if r.logged == nil || len(r.logged) == maxPanicReports {
		r.logged = make(map[string]bool)
	}
	r.logged[key] = true
	return true
}

// panicFlushDelay is how long the first lines of a panic can wait for the others.
const panicFlushDelay = 200 * time.Millisecond

// panicLog logs the lines of the panic of one process, unless the same panic of an earlier process was logged.
type panicLog struct {
	reports *PanicReports
	plugin  string
	logger  hclog.Logger

	mu      sync.Mutex
	waiting []string    // lines that are not logged yet, because they do not identify the panic
	timer   *time.Timer // flushes waiting; nil before the first line
	decided bool        // it is known whether the panic is new
	isNew   bool
}

// add adds a line.
func (p *panicLog) add(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil {
		p.timer = time.AfterFunc(panicFlushDelay, p.flush)
	}
	p.waiting = append(p.waiting, line)
	if p.decided || len(p.waiting) == maxPanicLines {
		p.flushLocked()
	}
}

// flush logs the lines that wait.
func (p *panicLog) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushLocked()
}

func (p *panicLog) flushLocked() {
	if len(p.waiting) == 0 {
		return
	}
	if !p.decided {
		p.decided, p.isNew = true, p.reports.isNew(p.plugin, p.waiting)
	}
	if p.isNew {
		for _, line := range p.waiting {
			p.logger.Error(line)
		}
	}
	p.waiting = nil
}
