package variable

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const listHelp = `List the variables whose path starts with PREFIX, by default all. Their items are not
shown.

In a table on a terminal, as JSON in a pipe.`

const listExamples = `  nomad-lite var list
  nomad-lite var list nomad/jobs
  nomad-lite var list -out terse`

type listOptions struct {
	clientFlags apiclient.Flags
	outputFlags outputFlags
	filter      string
	perPage     int32
	pageToken   string
}

func newListCommand(s *cli.Streams) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:     "list [flags] [PREFIX]",
		Short:   "List variables",
		Long:    listHelp,
		Example: listExamples,
		Args:    cli.RequireArgCount(0, 1, "the begin of paths, or nothing for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return listVariables(cmd.Context(), o, prefix, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(completeVariables(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	o.outputFlags.registerAndCheckBeforeRun(cmd, "table", "terse", "json", "go-template")
	cmd.Flags().StringVar(&o.filter, "filter", "", "list those only for which this `expression` is true")
	cmd.Flags().Int32Var(&o.perPage, "per-page", 0, "list so `many` at most")
	cmd.Flags().StringVar(&o.pageToken, "page-token", "", "go on from this `token`")
	return cmd
}

func listVariables(ctx context.Context, o listOptions, prefix string, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	q := apiclient.QueryOptions(ctx, "")
	q.Filter, q.PerPage, q.NextToken = o.filter, o.perPage, o.pageToken
	all, meta, err := c.Variables().PrefixList(prefix, q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list variables", err)
	}
	if meta.NextToken != "" {
		fmt.Fprintf(s.Err, "Next page token: %s\n", meta.NextToken)
	}
	switch o.outputFlags.selectOutputFormat(s, "table") {
	case "json":
		return printVariableJSON(s, all)
	case "go-template":
		return o.outputFlags.printWithTemplate(s, all)
	case "terse":
		t := new(output.Table)
		for _, v := range all {
			row := []any{v.Path}
			if o.clientFlags.Namespace == "*" {
				row = []any{v.Namespace, v.Path}
			}
			t.AddRow(row...)
		}
		p := output.NewPage(s)
		p.AddTable(t)
		return output.PrintPage(s, p)
	}
	p := output.NewPage(s)
	t := output.NewTable("Namespace", "Path", "Last Updated")
	for _, v := range all {
		t.AddRow(v.Namespace, v.Path, output.FormatDate(v.ModifyTime))
	}
	p.AddTableOrMessage(t, "No matching variables found")
	return output.PrintPage(s, p)
}
