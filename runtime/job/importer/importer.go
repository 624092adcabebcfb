package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// Position is a place in a file. A Line of 0 means the whole file.
type Position struct {
	File string
	Line int
}

// String returns "FILE:LINE", or "FILE" without a line.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// Warning reports a part of the input that has no counterpart in the job, or whose meaning changes.
type Warning struct {
	Position Position
	Text     string
}

// String returns the warning as one line, without the word "warning".
func (w Warning) String() string {
	if w.Position.File == "" {
		return w.Text
	}
	return w.Position.String() + ": " + w.Text
}

// Error is a fault of the input, with its position. Nothing is converted then.
type Error struct {
	Position Position
	Err      error
}

func (e *Error) Error() string { return Warning{e.Position, e.Err.Error()}.String() }

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error.
func Errorf(at Position, format string, args ...any) *Error {
	return &Error{Position: at, Err: fmt.Errorf(format, args...)}
}

// Result is a converted job.
type Result struct {
	// Job is a job file, formatted, which the parser of job files accepts.
	Job []byte
	// Warnings are sorted by file and line. Those without a position come last.
	Warnings []Warning
	// AgentConfig has the blocks that the configuration of the agent must have for the job, formatted. It is empty if the
	// job needs none.
	AgentConfig []byte
}

// Warnings collects warnings.
type Warnings struct{ list []Warning }

// Add adds a warning. It does not add the same warning twice.
func (w *Warnings) Add(at Position, format string, args ...any) {
	warning := Warning{Position: at, Text: fmt.Sprintf(format, args...)}
	for _, other := range w.list {
		if other == warning {
			return
		}
	}
	w.list = append(w.list, warning)
}

// List returns the warnings, sorted by file and line. Those without a position come last.
func (w *Warnings) List() []Warning {
	list := slices.Clone(w.list)
	slices.SortStableFunc(list, func(a, b Warning) int {
		if (a.Position.File == "") != (b.Position.File == "") {
			return cmp.Compare(b.Position.File, a.Position.File)
		}
		return cmp.Or(cmp.Compare(a.Position.File, b.Position.File), cmp.Compare(a.Position.Line, b.Position.Line))
	})
	return list
}
