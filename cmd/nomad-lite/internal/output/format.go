package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// FormatFlags are Nomad's flags that select an output format for programs.
type FormatFlags struct {
	JSON     bool
	Template string
}

// Register adds the flags to a command.
func (f *FormatFlags) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.JSON, "json", false, "print the objects as the API gives them")
	f.RegisterTemplateFlag(cmd)
}

// RegisterTemplateFlag adds only the flag -t, for a command in which -json has another meaning.
func (f *FormatFlags) RegisterTemplateFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.Template, "t", "t", "", "print the objects with this Go `template`, such as '{{range .}}{{println .ID}}{{end}}'")
}

// IsSet reports whether the flags select a format for programs.
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
	return PrintPage(s, p)
}

// PrintJSON writes a value to standard output, in the format of FormatJSON.
func PrintJSON(s *cli.Streams, value any) error {
	text, err := FormatJSON(value)
	if err != nil {
		return err
	}
	_, err = io.WriteString(s.JSONOutput(), text)
	return err
}

// FormatJSON returns a value as indented JSON with a line end. The fields of its objects are sorted by
// name, as in the output of Nomad's command line.
func FormatJSON(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // a float64 cannot represent the API's times in nanoseconds exactly
	var sorted any      // an untyped value, in which objects are maps, whose keys encoding/json sorts
	if err := decoder.Decode(&sorted); err != nil {
		return "", err
	}
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false)
	err = encoder.Encode(sorted)
	return b.String(), err
}
