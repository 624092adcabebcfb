package cli

import (
	"io"
	"os"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// Streams are the standard streams of a command: data goes to Out, all other text to Err.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer

	CommandLine []string // arguments of the program

	NoColour, ForceColour bool
}

// JSON returns standard output for JSON, which a terminal gets in a form without control characters.
func (s *Streams) JSON() io.Writer { return terminal.JSONWriter(s.Out) }

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
