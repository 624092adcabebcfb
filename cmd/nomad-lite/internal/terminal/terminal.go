package terminal

import (
	"io"
	"os"

	"golang.org/x/term"
)

// FileOfStream returns the file of a stream. The stream can be a file or a SanitizingWriter.
func FileOfStream(stream any) (*os.File, bool) {
	if w, ok := stream.(*SanitizingWriter); ok {
		return w.file, true
	}
	file, ok := stream.(*os.File)
	return file, ok
}

// SupportsCursor reports whether a stream is a terminal on which the cursor can be moved.
func SupportsCursor(w io.Writer) bool {
	file, ok := FileOfStream(w)
	name := os.Getenv("TERM")
	return ok && term.IsTerminal(int(file.Fd())) && name != "" && name != "dumb"
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	file, ok := FileOfStream(stream)
	return ok && term.IsTerminal(int(file.Fd()))
}

// SameFile reports whether two streams write to the same file.
func SameFile(a, b io.Writer) bool {
	fileA, okA := FileOfStream(a)
	fileB, okB := FileOfStream(b)
	if !okA || !okB {
		return a == b
	}
	infoA, errA := fileA.Stat()
	infoB, errB := fileB.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
