package variable

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/zclconf/go-cty/cty"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// NewCommand returns the command "var" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("var", "Manage variables",
		newListCommand(s),
		newGetCommand(s),
		newPutCommand(s),
		newPurgeCommand(s),
		newInitCommand(s),
		newLockCommand(s),
	)
}

var onePathArg = cli.RequireArgCount(1, 1, "the path of a variable; 'nomad-lite var list' lists them")

// completeVariables suggests paths of variables.
func completeVariables(f *apiclient.Flags) cli.Completer {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) (paths []string, err error) {
			all, _, err := c.Variables().PrefixList(begun, apiclient.QueryOptions(ctx, ""))
			for _, v := range all {
				paths = append(paths, v.Path)
			}
			return paths, err
		})
	}
}

// outputFlags select the format in which a command prints variables. -json is short for Nomad's -out json, and -t for
// -out go-template.
type outputFlags struct {
	formatFlags output.FormatFlags
	outFormat   string
	template    string
}

// registerAndCheckBeforeRun adds the flags to a command, and lets the command check them before it runs. formats are
// the values that -out accepts.
func (o *outputFlags) registerAndCheckBeforeRun(cmd *cobra.Command, formats ...string) {
	o.formatFlags.Register(cmd)
	cmd.Flags().StringVar(&o.outFormat, "out", "", "`format` to print: "+strings.Join(formats, ", "))
	cmd.Flags().StringVar(&o.template, "template", "", "Go `template` for -out go-template, the same as -t")
	cli.MustSetFlagCompletion(cmd, "out", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	check := func(cmd *cobra.Command) error {
		switch {
		case o.outFormat != "" && !slices.Contains(formats, o.outFormat):
			return cli.UsageError(cmd, fmt.Errorf("-out takes one of %s", strings.Join(formats, ", ")))
		case (o.template != "") != (o.outFormat == "go-template"):
			return cli.UsageError(cmd, errors.New("-template and -out go-template belong together; -t TEMPLATE is short for both"))
		}
		return nil
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd); err != nil {
			return err
		}
		return run(cmd, args)
	}
}

// selectOutputFormat returns the format that the flags select. Without such a flag it returns terminalDefault if
// standard output is a terminal, and "json" otherwise.
func (o *outputFlags) selectOutputFormat(s *cli.Streams, terminalDefault string) string {
	switch {
	case o.formatFlags.JSON:
		return "json"
	case o.formatFlags.Template != "":
		return "go-template"
	case o.outFormat != "":
		return o.outFormat
	case terminal.IsTerminal(s.Out):
		return terminalDefault
	}
	return "json"
}

func (o *outputFlags) printWithTemplate(s *cli.Streams, value any) error {
	return (&output.FormatFlags{Template: cmp.Or(o.template, o.formatFlags.Template)}).Print(s, value)
}

func (o *outputFlags) printVariable(s *cli.Streams, v *api.Variable, terminalDefault string) error {
	switch o.selectOutputFormat(s, terminalDefault) {
	case "none":
		return nil
	case "json":
		return printVariableJSON(s, v)
	case "hcl":
		_, err := s.Out.Write(formatVariableHCL(v))
		return err
	case "go-template":
		return o.printWithTemplate(s, v)
	}
	p := output.NewPage(s)
	rows := output.Pairs{
		{"Namespace", v.Namespace},
		{"Path", v.Path},
		{"Create Time", output.FormatDate(v.CreateTime)},
	}
	if v.CreateTime != v.ModifyTime {
		rows = append(rows, [2]any{"Modify Time", output.FormatDate(v.ModifyTime)})
	}
	rows = append(rows, [2]any{"Check Index", v.ModifyIndex})
	if v.Lock != nil {
		rows = append(rows, output.Pairs{{"Lock ID", v.Lock.ID}, {"Lock TTL", v.Lock.TTL}, {"Lock Delay", v.Lock.LockDelay}}...)
	}
	p.AddPairs(rows)
	p.AddSectionTitle("Items")
	p.AddPairs(output.SortedPairs(v.Items))
	return output.PrintPage(s, p)
}

// printVariableJSON writes a variable, or a list of variables, as JSON. Indentation and order of fields are those of
// Nomad's `var` commands, and differ from all other commands.
func printVariableJSON(s *cli.Streams, value any) error {
	encoder := json.NewEncoder(s.JSONOutput())
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// formatVariableHCL returns a variable in HCL, as `var put` reads it.
func formatVariableHCL(v *api.Variable) []byte {
	var hclText bytes.Buffer
	attribute := func(name string, value cty.Value) {
		fmt.Fprintf(&hclText, "%s = %s\n", name, hclwrite.TokensForValue(value).Bytes())
	}
	attribute("namespace", cty.StringVal(v.Namespace))
	attribute("path", cty.StringVal(v.Path))
	attribute("create_index", cty.NumberUIntVal(v.CreateIndex))
	attribute("modify_index", cty.NumberUIntVal(v.ModifyIndex))
	attribute("create_time", cty.NumberIntVal(v.CreateTime))
	attribute("modify_time", cty.NumberIntVal(v.ModifyTime))
	items := map[string]cty.Value{}
	for name, value := range v.Items {
		items[name] = cty.StringVal(value)
	}
	hclText.WriteByte('\n')
	attribute("items", cty.ObjectVal(items))
	return hclwrite.Format(hclText.Bytes())
}
