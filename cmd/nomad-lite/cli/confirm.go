package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// errDeclined ends a command that the user has declined.
var errDeclined = &ExitError{1, errors.New("nothing was changed")}

// Confirm asks the user a question. Without a terminal it returns an error.
func (s *Streams) Confirm(question string) error {
	if !s.IsInteractive() {
		return fmt.Errorf("%s There is no terminal for an answer: add -yes", question)
	}
	fmt.Fprintf(s.Err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(s.In).ReadString('\n')
	if err != nil {
		fmt.Fprintln(s.Err)
		return errDeclined
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// IsInteractive reports whether the user can answer a question on a terminal.
func (s *Streams) IsInteractive() bool {
	file, ok := s.In.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
