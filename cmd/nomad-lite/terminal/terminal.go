package terminal

import (
	"io"
	"os"

	"golang.org/x/term"
)

// SupportsCursor reports whether a stream is a terminal on which the cursor can be moved.
func SupportsCursor(w io.Writer) bool {
	file, ok := w.(*os.File)
	name := os.Getenv("TERM")
	return ok && term.IsTerminal(int(file.Fd())) && name != "" && name != "dumb"
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// SameFile reports whether two streams write to the same file.
func SameFile(a, b io.Writer) bool {
	fileA, okA := a.(*os.File)
	fileB, okB := b.(*os.File)
	if !okA || !okB {
		return a == b
	}
	infoA, errA := fileA.Stat()
	infoB, errB := fileB.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
