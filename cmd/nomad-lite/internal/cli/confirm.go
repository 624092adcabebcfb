package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Confirm asks the user a question on standard output, and returns nil for the answer "y". The answer
// is a line of standard input, which can be a pipe. For each other answer Confirm prints a message,
// declined if the answer is no, and returns an error with the exit code of Nomad's command line.
func (s *Streams) Confirm(question, declined string) error {
	fmt.Fprintf(s.Out, "%s [y/N] ", question)
	answer, err := readLine(s.In)
	if err != nil {
		fmt.Fprintln(s.Out)
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Failed to parse answer: %w", err)
	}
	message, code := declined, 0
	switch lower := strings.ToLower(answer); {
	case answer == "y":
		return nil
	case answer == "" || lower[0] == 'n':
	case lower[0] == 'y' && len(answer) > 1:
		message = "For confirmation, an exact ‘y’ is required."
	default:
		message, code = "No confirmation detected. For confirmation, an exact 'y' is required.", 1
	}
	fmt.Fprintln(s.Out, message)
	return &ExitError{Code: code}
}

// readLine reads a line without surrounding spaces. It reads single bytes, so that a later question
// gets the next line. At the end of the input, readLine returns the text so far, or io.EOF if there is
// none.
func readLine(r io.Reader) (string, error) {
	var line strings.Builder
	for b := make([]byte, 1); ; {
		n, err := r.Read(b)
		switch {
		case n > 0 && b[0] == '\n', errors.Is(err, io.EOF) && line.Len() > 0:
			return strings.TrimSpace(line.String()), nil
		case n > 0:
			line.WriteByte(b[0])
		}
		if err != nil {
			return "", err
		}
	}
}

// IsInteractive reports whether the user can answer a question on a terminal.
func (s *Streams) IsInteractive() bool {
	file, ok := s.In.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
