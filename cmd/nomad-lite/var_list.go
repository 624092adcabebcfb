package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

const varListHelp = `List variables, or those whose path begins with PREFIX. What is in them is not
shown.

In a table on a terminal, as JSON in a pipe.`

const varListExamples = `  nomad-lite var list
  nomad-lite var list nomad/jobs
  nomad-lite var list -out terse`

type varListOptions struct {
	client  clientFlags
	output  varOutput
	filter  string
	perPage int32
	token   string
}

func newVarListCommand(s *streams) *cobra.Command {
	var o varListOptions
	cmd := &cobra.Command{
		Use:     "list [flags] [PREFIX]",
		Short:   "List variables",
		Long:    varListHelp,
		Example: varListExamples,
		Args:    argCount(0, 1, "the begin of paths, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return listVariables(cmd.Context(), o, prefix, s)
		},
		ValidArgsFunction: firstArg(o.client.completeVariables),
	}
	o.client.register(cmd)
	o.output.register(cmd, "table", "terse", "json", "go-template")
	cmd.Flags().StringVar(&o.filter, "filter", "", "list those only for which this `expression` is true")
	cmd.Flags().Int32Var(&o.perPage, "per-page", 0, "list so `many` at most")
	cmd.Flags().StringVar(&o.token, "page-token", "", "go on from this `token`")
	return cmd
}

func listVariables(ctx context.Context, o varListOptions, prefix string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	q := query(ctx, "")
	q.Filter, q.PerPage, q.NextToken = o.filter, o.perPage, o.token
	all, meta, err := c.Variables().PrefixList(prefix, q)
	if err != nil {
		return failed("list variables", err)
	}
	if meta.NextToken != "" {
		fmt.Fprintf(s.err, "There are more: go on with -page-token %s\n", meta.NextToken)
	}
	switch o.output.chosen(s, "table") {
	case "json":
		return printJSON(s, all)
	case "go-template":
		return o.output.execute(s, all)
	case "terse":
		for _, v := range all {
			if _, err := fmt.Fprintln(s.out, v.Path); err != nil {
				return err
			}
		}
		return nil
	}
	p := s.page()
	t := newTable("Namespace", "Path", "Last Updated")
	for _, v := range all {
		t.row(v.Namespace, v.Path, date(v.ModifyTime))
	}
	p.tableOr(t, "No variables found")
	return s.show(p)
}
