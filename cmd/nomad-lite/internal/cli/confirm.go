package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Confirm asks the user a question on standard output, and returns nil for the answer "y". Confirm reads the answer
// from a line of standard input, which can be a pipe. For each other answer Confirm prints a message and returns an
// error with the exit code of Nomad's command line. For "no", the message is declinedMessage.
func (s *Streams) Confirm(question, declinedMessage string) error {
	fmt.Fprintf(s.Out, "%s [y/N] ", question)
	answer, err := readLine(s.In)
	if err != nil {
		fmt.Fprintln(s.Out)
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Failed to parse answer: %w", err)
	}
	message, code := declinedMessage, 0
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

// readLine reads a line and trims the surrounding spaces. It reads single bytes, so that the next line remains for a
// later question. At the end of the input, readLine returns the incomplete line, or io.EOF if it is empty.
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

// IsInteractive reports whether standard input is a terminal, so that a user can answer questions.
func (s *Streams) IsInteractive() bool {
	file, ok := s.In.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
