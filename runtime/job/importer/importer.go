package importer

import (
	"fmt"
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
	// Warnings are in the order of the input.
	Warnings []Warning
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

// List returns the warnings in the order in which they were added.
func (w *Warnings) List() []Warning { return w.list }
