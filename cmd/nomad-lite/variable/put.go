package variable

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const putHelp = `Write a variable, with items from the command line, from a specification, or both.

A specification is a file in HCL or JSON, named as @FILE, or - for standard input;
'nomad-lite var init' writes one to begin with. It may name the path. Items from the
command line are added to those in it. The VALUE of an item may be @FILE, or - for
standard input; write \@ or \- for a value that begins like that.

A variable that exists is not overwritten, unless -check-index says what it was,
or -force is given. The modify_index of a specification is a -check-index.

Exit codes: 0, or 1 when it was refused.`

const putExamples = `  nomad-lite var put nomad/jobs/web user=app password=@password.txt
  nomad-lite var put @spec.nv.hcl
  generate-password | nomad-lite var put -force nomad/jobs/web password=-
  nomad-lite var get -out hcl nomad/jobs/web > web.nsv.hcl    edit it, and then
  nomad-lite var put @web.nsv.hcl`

type putOptions struct {
	clientFlags   apiclient.Flags
	outputFlags   outputFlags
	checkIndex    uint64
	checkIndexSet bool
	force         bool
	specFormat    string
	verbose       bool
}

func newPutCommand(s *cli.Streams) *cobra.Command {
	var o putOptions
	cmd := &cobra.Command{
		Use:     "put [flags] [PATH] [@FILE|-] [NAME=VALUE...]",
		Short:   "Write a variable",
		Long:    putHelp,
		Example: putExamples,
		Args:    cli.RequireArgCount(1, -1, "a path and items, or a specification"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.checkIndexSet = cmd.Flags().Changed("check-index")
			switch {
			case o.force && o.checkIndexSet:
				return cli.UsageError(cmd, errors.New("-force and -check-index exclude each other"))
			case o.specFormat != "" && o.specFormat != "hcl" && o.specFormat != "json":
				return cli.UsageError(cmd, errors.New("-in takes hcl or json"))
			}
			v, err := o.readVariableFromArgs(args, s.In)
			if err != nil {
				return err
			}
			return putVariable(cmd.Context(), o, v, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(completeVariables(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	o.outputFlags.registerAndCheckBeforeRun(cmd, "table", "hcl", "json", "go-template", "none")
	cmd.Flags().Uint64Var(&o.checkIndex, "check-index", 0, "write it only if its modify `index` is this one; 0 means that it must be new")
	cmd.Flags().BoolVar(&o.force, "force", false, "overwrite what is there")
	cmd.Flags().StringVar(&o.specFormat, "in", "", "`format` of a specification whose name does not tell: hcl or json")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "say what is done")
	return cmd
}

// readVariableFromArgs returns the variable that the arguments of the command and the specification, if one is named,
// describe.
func (o *putOptions) readVariableFromArgs(args []string, stdin io.Reader) (*api.Variable, error) {
	v := &api.Variable{}
	path := ""
	if !isFileReference(args[0]) {
		path, args = args[0], args[1:]
	}
	read := &referencedFileReader{stdin: stdin}
	if len(args) > 0 && isFileReference(args[0]) {
		var err error
		if v, err = o.readSpec(args[0], read); err != nil {
			return nil, err
		}
		args = args[1:]
	}
	if path != "" {
		v.Path = path
	}
	if o.clientFlags.Namespace != "" {
		v.Namespace = o.clientFlags.Namespace
	}
	items := maps.Clone(v.Items)
	if items == nil {
		items = api.VariableItems{}
	}
	for _, arg := range args {
		name, value, found := strings.Cut(arg, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("%q: want NAME=VALUE", arg)
		}
		switch {
		case strings.HasPrefix(value, `\@`), strings.HasPrefix(value, `\-`):
			value = value[1:]
		case isFileReference(value):
			text, err := read.readReferencedText(value)
			if err != nil {
				return nil, err
			}
			value = string(text)
		}
		items[name] = value
	}
	v.Items = items
	switch {
	case v.Path == "":
		return nil, errors.New("no path: name one as the first argument, or in the specification")
	case len(items) == 0:
		return nil, fmt.Errorf("variable %q would have no items: add NAME=VALUE", v.Path)
	}
	if err := model.ValidateVariablePath(v.Path); err != nil {
		return nil, fmt.Errorf("%w%s", err, explainInvalidPath(v.Path))
	}
	return v, nil
}

// explainInvalidPath returns which characters of a path are not allowed, or that the path is too long, as the end of
// an error text. It returns "" for a valid path.
func explainInvalidPath(path string) string {
	var invalid []string
	for _, c := range path {
		isAllowed := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_~/", c)
		if quoted := strconv.Quote(string(c)); !isAllowed && !slices.Contains(invalid, quoted) {
			invalid = append(invalid, quoted)
		}
	}
	const maxLength = 128
	switch {
	case len(invalid) > 0:
		return fmt.Sprintf(": it has %s; allowed are letters from a to z, digits, and - _ ~ /", strings.Join(invalid, ", "))
	case len(path) > maxLength:
		return fmt.Sprintf(": it has %d characters, and %d are allowed", len(path), maxLength)
	}
	return ""
}

// readSpec reads a variable from the file that an argument refers to, or from standard input.
func (o *putOptions) readSpec(fileRefOrStdin string, fileReader *referencedFileReader) (*api.Variable, error) {
	text, err := fileReader.readReferencedText(fileRefOrStdin)
	if err != nil {
		return nil, err
	}
	return o.parseSpec(text, fileRefOrStdin)
}

// isFileReference reports whether an argument refers to a file (@file) or to standard input (-).
func isFileReference(arg string) bool { return arg == "-" || len(arg) > 1 && arg[0] == '@' }

// referencedFileReader reads the files to which arguments refer. It returns an error for the second use of standard
// input.
type referencedFileReader struct {
	stdin        io.Reader
	stdinWasRead bool
}

func (i *referencedFileReader) readReferencedText(fileRefOrStdin string) ([]byte, error) {
	if fileRefOrStdin != "-" {
		return os.ReadFile(fileRefOrStdin[1:])
	}
	if i.stdinWasRead {
		return nil, errors.New("standard input is named twice with -")
	}
	i.stdinWasRead = true
	text, err := io.ReadAll(i.stdin)
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return text, nil
}

// parseSpec parses a variable in JSON or HCL. The format is that of -in, or else depends on the file name and the first
// character.
func (o *putOptions) parseSpec(text []byte, fileRefOrStdin string) (*api.Variable, error) {
	format := o.specFormat
	switch {
	case format != "":
	case strings.HasSuffix(fileRefOrStdin, ".json"):
		format = "json"
	case strings.HasSuffix(fileRefOrStdin, ".hcl"):
		format = "hcl"
	case bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")):
		format = "json"
	}
	name := strings.TrimPrefix(fileRefOrStdin, "@")
	if format == "json" {
		v := new(api.Variable)
		if err := json.Unmarshal(text, v); err != nil {
			return nil, fmt.Errorf("read specification %s: %w", name, err)
		}
		return v, nil
	}
	return parseVariableHCL(text, name)
}

// parseVariableHCL parses a variable in HCL.
func parseVariableHCL(text []byte, fileName string) (*api.Variable, error) {
	file, diags := hclsyntax.ParseConfig(text, fileName, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, fmt.Errorf("read specification: %w", diags)
	}
	body := file.Body.(*hclsyntax.Body)
	v := &api.Variable{}
	fields := map[string]any{
		"path": &v.Path, "namespace": &v.Namespace, "modify_index": &v.ModifyIndex,
		"create_index": &v.CreateIndex, "create_time": &v.CreateTime, "modify_time": &v.ModifyTime,
	}
	items := map[string]cty.Value{}
	for key, attribute := range body.Attributes {
		value, diags := attribute.Expr.Value(nil)
		if diags.HasErrors() {
			return nil, fmt.Errorf("read specification: %w", diags)
		}
		switch field := fields[key]; {
		case field != nil:
			if err := gocty.FromCtyValue(value, field); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", attribute.SrcRange, key, err)
			}
		case key == "items" && value.CanIterateElements() && value.Type().IsObjectType():
			maps.Copy(items, value.AsValueMap())
		case key == "items":
			return nil, fmt.Errorf("%s: items must be NAME = \"VALUE\" in braces", attribute.SrcRange)
		default:
			return nil, fmt.Errorf("%s: %q is not a part of a variable; there are path, namespace, items and modify_index", attribute.SrcRange, key)
		}
	}
	for _, block := range body.Blocks {
		if block.Type != "items" {
			return nil, fmt.Errorf("%s: %q is not a part of a variable", block.TypeRange, block.Type)
		}
		for key, attribute := range block.Body.Attributes {
			value, diags := attribute.Expr.Value(nil)
			if diags.HasErrors() {
				return nil, fmt.Errorf("read specification: %w", diags)
			}
			items[key] = value
		}
	}
	v.Items = api.VariableItems{}
	for key, value := range items {
		text, err := convert.Convert(value, cty.String)
		if err != nil || text.IsNull() {
			return nil, fmt.Errorf("%s: item %q must be a string", fileName, key)
		}
		v.Items[key] = text.AsString()
	}
	return v, nil
}

func putVariable(ctx context.Context, o putOptions, v *api.Variable, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	if o.verbose {
		fmt.Fprintf(s.Err, "Writing variable %q with %d items\n", v.Path, len(v.Items))
	}
	var storedVariable *api.Variable
	if o.force {
		storedVariable, _, err = c.Variables().Update(v, apiclient.WriteOptions(ctx, ""))
	} else {
		if o.checkIndexSet {
			v.ModifyIndex = o.checkIndex
		}
		storedVariable, _, err = c.Variables().CheckedUpdate(v, apiclient.WriteOptions(ctx, ""))
	}
	if conflict := new(api.ErrCASConflict); errors.As(err, conflict) {
		return newConflictError(v.Path, conflict)
	}
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("write variable %q", v.Path), err)
	}
	cli.SetPageForUIFlag(ctx, cli.VariableWebPagePath(storedVariable.Path, storedVariable.Namespace))
	if o.outputFlags.selectOutputFormat(s, "none") != "none" {
		return o.outputFlags.printVariable(s, storedVariable, "none")
	}
	verb := "Updated"
	if storedVariable.CreateIndex == storedVariable.ModifyIndex {
		verb = "Created"
	}
	_, err = fmt.Fprintf(s.Out, "%s variable %q with modify index %d\n", verb, storedVariable.Path, storedVariable.ModifyIndex)
	return err
}

// newConflictError returns the error of a failed check-and-set. Scripts search it for its title and for the two
// indexes.
func newConflictError(path string, conflict *api.ErrCASConflict) error {
	const title = "\nCheck-and-Set conflict\n\n"
	found := conflict.Conflict
	if found == nil || found.ModifyIndex == 0 {
		//lint:ignore ST1005 the empty lines around the text are Nomad's
		return fmt.Errorf(title+"Variable %q does not exist: the provided check-index (%d) is not 0, the server-side index (0).\nTo write it all the same, add -force or -check-index 0\n",
			path, conflict.CheckIndex)
	}
	changed := time.Unix(0, found.ModifyTime).Format(time.RFC3339)
	//lint:ignore ST1005 the empty lines around the text are Nomad's
	return fmt.Errorf(title+"Variable %q was changed %s: the provided check-index (%d) does not match the server-side index (%d).\nTo overwrite it, add -force or -check-index %d\n",
		path, changed, conflict.CheckIndex, found.ModifyIndex, found.ModifyIndex)
}
