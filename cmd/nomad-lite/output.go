package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// formatFlags select an output format for programs. They are Nomad's flags.
type formatFlags struct {
	json     bool
	template string
}

func (f *formatFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.json, "json", false, "print the objects as the API gives them")
	f.registerTemplate(cmd)
}

// registerTemplate registers -t only, for a command in which -json has another meaning.
func (f *formatFlags) registerTemplate(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.template, "t", "t", "", "print the objects with this Go `template`, such as '{{range .}}{{println .ID}}{{end}}'")
}

// wanted reports whether the output is for a program.
func (f *formatFlags) wanted() bool { return f.json || f.template != "" }

// print writes an object of the API, or a list of them.
func (f *formatFlags) print(s *streams, value any) error {
	if f.template == "" {
		return printJSON(s, value)
	}
	if f.json {
		return errors.New("-json and -t exclude each other: leave one out")
	}
	t, err := template.New("-t").Parse(f.template)
	if err != nil {
		return fmt.Errorf("read the template of -t: %w", err)
	}
	var text strings.Builder
	if err := t.Execute(&text, value); err != nil {
		return fmt.Errorf("%w\nThe names are those of -json", err)
	}
	_, err = fmt.Fprintln(s.out, strings.TrimSuffix(text.String(), "\n"))
	return err
}

// show writes an object of the API, or a list of them, in the selected format. Without one
// it draws the page for people.
func (f *formatFlags) show(s *streams, value any, draw func(*page)) error {
	if f.wanted() {
		return f.print(s, value)
	}
	p := s.page()
	draw(p)
	return s.show(p)
}

func printJSON(s *streams, value any) error {
	encoder := json.NewEncoder(s.out)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// pageFlags select the part of a list. They are Nomad's flags.
type pageFlags struct {
	filter  string
	perPage int32
	token   string
}

func (f *pageFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.filter, "filter", "", "list only what this `expression` is true of, such as 'JobID == \"web\"'")
	cmd.Flags().Int32Var(&f.perPage, "per-page", 0, "list at most so `many`")
	cmd.Flags().StringVar(&f.token, "page-token", "", "list what comes after this `token`, which the page before has named")
}

func (f *pageFlags) query(ctx context.Context) *api.QueryOptions {
	q := query(ctx, "")
	q.Filter, q.PerPage, q.NextToken = f.filter, f.perPage, f.token
	return q
}

// more adds the command line for the rest of a list.
func (p *page) more(meta *api.QueryMeta) {
	if meta != nil && meta.NextToken != "" {
		p.line("")
		p.line("There are more: add -page-token %s", meta.NextToken)
	}
}

// colours reports whether output to w can have colours.
func (s *streams) colours(w io.Writer) bool {
	switch {
	case s.noColour || os.Getenv("NO_COLOR") != "" || os.Getenv("NOMAD_CLI_NO_COLOR") != "":
		return false
	case s.forceColour || os.Getenv("NOMAD_CLI_FORCE_COLOR") != "":
		return true
	}
	return isScreen(w)
}
