package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// errDeclined ends a command that the user has declined.
var errDeclined = &exitError{1, errors.New("nothing was changed")}

// confirm asks the user a question. Without a terminal it returns an error.
func (s *streams) confirm(question string) error {
	if !s.interactive() {
		return fmt.Errorf("%s Nobody is there to answer: add -yes", question)
	}
	fmt.Fprintf(s.err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(s.in).ReadString('\n')
	if err != nil {
		fmt.Fprintln(s.err)
		return errDeclined
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// interactive reports whether the user can answer a question on a terminal.
func (s *streams) interactive() bool {
	file, ok := s.in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
