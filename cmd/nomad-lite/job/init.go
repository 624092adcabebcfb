package job

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

//go:embed template/long.nomad.hcl
var longExampleJob string

//go:embed template/short.nomad.hcl
var shortExampleJob string

// exampleFileName is the default name of the example file, the same as in Nomad.
const exampleFileName = "example.nomad.hcl"

// templateDir is the path prefix of the variables that hold templates of job files. The prefix and the names of the
// items are the same as in Nomad.
const (
	templateDir             = "nomad/job-templates"
	templateItem            = "template"
	templateDescriptionItem = "description"
)

type initOptions struct {
	clientFlags          apiclient.Flags
	shortExample         bool
	consulConnectExample bool
	templateName         string
	listTemplates        bool
}

// NewInitCommand returns the command "init".
func NewInitCommand(s *cli.Streams) *cobra.Command {
	var o initOptions
	cmd := &cobra.Command{
		Use:   "init [flags] [FILE]",
		Short: "Write an example job file",
		Long: `Write an example job file, by default ` + exampleFileName + `. An existing file is not
overwritten.

With -template the example is the item "` + templateItem + `" of the variable ` + templateDir + `/NAME
of an agent.`,
		Example: `  nomad-lite job init && nomad-lite run ` + exampleFileName + `
  nomad-lite job init -short web.nomad.hcl
  nomad-lite var put ` + templateDir + `/web ` + templateItem + `=@web.nomad.hcl
  nomad-lite job init -template web shop.nomad.hcl`,
		Args: cli.RequireArgCount(0, 1, "the name of a file, or nothing for "+exampleFileName),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.consulConnectExample:
				return errors.New("job init: nomad-lite has no example with Consul Connect: Consul is not a part of it")
			case o.listTemplates:
				return printJobTemplateNames(cmd.Context(), o, s)
			}
			text, err := o.readExampleOrTemplate(cmd.Context())
			if err != nil {
				return err
			}
			return writeExampleJobFile(append(args, exampleFileName)[0], text, s)
		},
	}
	o.clientFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.shortExample, "short", false, "without explanations")
	cmd.Flags().StringVar(&o.templateName, "template", "", "write the template with this `name`, which an agent stores")
	cmd.Flags().BoolVar(&o.listTemplates, "list-templates", false, "list the templates that an agent stores, and write no file")
	cmd.Flags().BoolVar(&o.consulConnectExample, "connect", false, "write an example with Consul Connect")
	_ = cmd.Flags().MarkHidden("connect") // MarkHidden fails only for an unknown flag
	return cmd
}

// printJobTemplateNames prints the names of the templates that an agent stores.
func printJobTemplateNames(ctx context.Context, o initOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	all, _, err := c.Variables().PrefixList(templateDir+"/", apiclient.QueryOptions(ctx, ""))
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list job templates", err)
	}
	if len(all) == 0 {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("No variables in %s\nStore a template: nomad-lite var put %s/NAME %s=@FILE", templateDir, templateDir, templateItem)
	}
	p := output.NewPage(s)
	t := output.NewTable("Template", "Description")
	for _, stub := range all {
		v, _, err := c.Variables().Read(stub.Path, apiclient.QueryOptions(ctx, stub.Namespace))
		if err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job template %q", stub.Path), err)
		}
		t.AddRow(strings.TrimPrefix(stub.Path, templateDir+"/"), v.Items[templateDescriptionItem])
	}
	p.AddTable(t)
	return output.PrintPage(s, p)
}

// readExampleOrTemplate returns the text of an example job file: a built-in example or, with -template, a variable of
// the agent.
func (o initOptions) readExampleOrTemplate(ctx context.Context) (string, error) {
	switch {
	case o.templateName != "":
	case o.shortExample:
		return shortExampleJob, nil
	default:
		return longExampleJob, nil
	}
	c, err := o.clientFlags.Client()
	if err != nil {
		return "", err
	}
	path := templateDir + "/" + o.templateName
	v, _, err := c.Variables().Read(path, apiclient.QueryOptions(ctx, ""))
	if errors.Is(err, api.ErrVariablePathNotFound) {
		return "", fmt.Errorf("there is no job template %q\nList the job templates: nomad-lite job init -list-templates", o.templateName)
	}
	if err != nil {
		return "", apiclient.WrapErrorWithAdvice(fmt.Sprintf("read job template %q", o.templateName), err)
	}
	text := v.Items[templateItem]
	if text == "" {
		return "", fmt.Errorf("variable %q has no item %q\nWrite it: nomad-lite var put -force %s %s=@FILE", path, templateItem, path, templateItem)
	}
	return text, nil
}

func writeExampleJobFile(path, text string, s *cli.Streams) error {
	err := cli.WriteNewFile(path, text, 0o644)
	if errors.Is(err, fs.ErrExist) {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Job '%s' already exists\nGive another name: nomad-lite job init FILE", path)
	}
	if err != nil {
		return fmt.Errorf("write job file %s: %w", path, err)
	}
	_, err = fmt.Fprintf(s.Out, "Example job file written to %s\nRun it: nomad-lite run %s\n", path, path)
	return err
}
