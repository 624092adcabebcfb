package cli

import (
	"io"
	"os"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// Streams are the standard streams of a command and the settings of their colours. A command writes data to Out and all
// other text to Err.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer

	CommandLineArgs []string // arguments of nomad-lite, without the program name

	NoColour, ForceColour bool
}

// JSONOutput returns a writer to standard output for JSONOutput. On a terminal, the writer escapes control characters.
func (s *Streams) JSONOutput() io.Writer { return terminal.EscapeJSONIfTerminal(s.Out) }

// SupportsColours reports whether output to w can have colours.
func (s *Streams) SupportsColours(w io.Writer) bool {
	switch {
	case s.NoColour || os.Getenv("NO_COLOR") != "" || os.Getenv("NOMAD_CLI_NO_COLOR") != "":
		return false
	case s.ForceColour || os.Getenv("NOMAD_CLI_FORCE_COLOR") != "":
		return true
	}
	return terminal.SupportsCursor(w)
}
