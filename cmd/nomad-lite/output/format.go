package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

// FormatFlags select an output format for programs. They are Nomad's flags.
type FormatFlags struct {
	JSON     bool
	Template string
}

// Register adds the flags to a command.
func (f *FormatFlags) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.JSON, "json", false, "print the objects as the API gives them")
	f.RegisterTemplate(cmd)
}

// RegisterTemplate registers -t only, for a command in which -json has another meaning.
func (f *FormatFlags) RegisterTemplate(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Template, "t", "t", "", "print the objects with this Go `template`, such as '{{range .}}{{println .ID}}{{end}}'")
}

// IsSet reports whether the output is for a program.
func (f *FormatFlags) IsSet() bool { return f.JSON || f.Template != "" }

// Print writes an object of the API, or a list of objects, in the format that the flags select.
func (f *FormatFlags) Print(s *cli.Streams, value any) error {
	if f.Template == "" {
		return PrintJSON(s, value)
	}
	if f.JSON {
		return errors.New("-json and -t exclude each other: leave one out")
	}
	text, err := executeTemplate(f.Template, value)
	if err != nil {
		return fmt.Errorf("-t: %w", err)
	}
	_, err = fmt.Fprintln(s.Out, strings.TrimSuffix(text, "\n"))
	return err
}

// PrintValueOrPage writes an object of the API, or a list of objects, in the format that the flags
// select. If they select none, it draws the page for people.
func (f *FormatFlags) PrintValueOrPage(s *cli.Streams, value any, draw func(*Page)) error {
	if f.IsSet() {
		return f.Print(s, value)
	}
	p := NewPage(s)
	draw(p)
	return Print(s, p)
}

// PrintJSON writes a value as indented JSON to standard output.
func PrintJSON(s *cli.Streams, value any) error {
	encoder := json.NewEncoder(s.Out)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
