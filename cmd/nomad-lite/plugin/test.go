package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/spf13/cobra"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/sdk/sdktest"
)

const testHelp = `Test a task driver, a hook or a device plugin against the contract between plugins
and hosts.

The plugin is started as hosts start it. A driver is made to run, stop, recover
and lose tasks; a hook is called at its hook points for many tasks; the devices of
a device plugin are reserved and measured. Each is killed in the middle of it. Each
case prints PASS, FAIL, SKIP, or QUIRK: a difference from other plugins that hosts
cope with, which is no failure.

What a plugin can be made to do is said in a file, by default plugin_test.hcl
beside PATH. For a driver:

  runs  = { message = "again and again" }  # a task that runs until it is stopped
  ends  = { times = 1 }                    # a task that ends by itself, and well
  fails = { exit_code = 3 }                # a task that ends by itself, and not well

  # or, for a driver that runs commands, this alone: most cases are for these
  shell = { command = "/bin/sh", args = ["-c", script] }

Each is the body of a task's config block. Without a file, a driver that takes
a command and args is made to run /bin/sh. For a hook:

  attachment = { greeting = "hello" }      # how a job attaches it, if it wants to know

And for all, also for a device plugin:

  config = { enabled = true }              # the body of the plugin block, if any

A block is an object, its labels are keys, and several blocks of one name without
labels are a list: { model = { T100 = { attributes = { power = "20 mW" } } } }. The
variable dir is the absolute path of the directory of the file: "${dir}/bus".

A case that takes longer than -timeout fails, and the plugin is killed. The first
Ctrl-C ends the test after the case that runs, the second at once: the plugin and
its tasks are killed.

BUILTIN is the name of a builtin plugin, such as raw_exec.

With -json each case prints an object: ID, Case (the expected behavior), Severity
(must, should or quirk), Verdict (PASS, FAIL, SKIP or QUIRK), Seconds, unless it
passed Messages, and if it failed or found a quirk Why and Link.

Exit codes: 0 when nothing failed, else 1.`

// pluginTestFile is the name of the file, in the directory of a plugin's program, that says what the plugin can be made
// to do in its test.
const pluginTestFile = "plugin_test.hcl"

// hclEncoder encodes configurations as an agent does.
var hclEncoder = sdktest.ConfigEncoder{
	Msgpack: func(schema *hclspec.Spec, config map[string]any) ([]byte, error) {
		value, err := decodeConfig(schema, config)
		if err != nil {
			return nil, err
		}
		return block.Marshal(value)
	},
	JSON: func(schema *hclspec.Spec, config map[string]any) ([]byte, error) {
		value, err := decodeConfig(schema, config)
		if err != nil {
			return nil, err
		}
		return ctyjson.Marshal(value, value.Type())
	},
	SchemaFault: block.Fault,
}

func decodeConfig(schema *hclspec.Spec, config map[string]any) (cty.Value, error) {
	value, diags := block.Decode(schema, config, nil)
	if diags.HasErrors() {
		return cty.NilVal, errors.New(strings.Join(block.Messages(diags), "; "))
	}
	return value, nil
}

type testOptions struct {
	suiteConfigFile, pluginConfigFile, runningTaskConfigFile string // paths of HCL files; empty without the flag
	junitFile                                                string
	caseIDPatterns                                           string
	caseTimeout                                              time.Duration
	printJSON                                                bool
}

func newTestCommand(s *cli.Streams) *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test [flags] PATH|BUILTIN [-- ARGS...]",
		Short: "Test a plugin against the plugin contract",
		Long:  testHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("plugin test: which plugin? Give the path of its program, such as ./hello")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return testPlugin(cmd.Context(), o, args[0], args[1:], s)
		},
	}
	cmd.Flags().StringVar(&o.suiteConfigFile, "tasks", "", "read what the plugin is made to do from this `file`")
	cmd.Flags().DurationVar(&o.caseTimeout, "timeout", 2*time.Minute, "fail a case that takes longer than this `duration`, and kill the plugin")
	cmd.Flags().StringVar(&o.pluginConfigFile, "config", "", "read the body of the plugin block's config from this `file`")
	cmd.Flags().StringVar(&o.runningTaskConfigFile, "task", "", "read the config of a task that runs until it is stopped from this `file`")
	cmd.Flags().StringVar(&o.caseIDPatterns, "only", "", "run the cases whose ids match this `pattern`, such as 'exec.*'; several are separated by commas")
	cmd.Flags().StringVar(&o.junitFile, "junit", "", "write the results as JUnit XML to this `file`")
	cmd.Flags().BoolVar(&o.printJSON, "json", false, "print a JSON object for each case")
	return cmd
}

// testPlugin tests the program at the path pathOrBuiltin, which it starts with pluginArgs, or the builtin plugin of
// this name.
func testPlugin(ctx context.Context, o testOptions, pathOrBuiltin string, pluginArgs []string, s *cli.Streams) error {
	if o.caseTimeout <= 0 {
		return fmt.Errorf("plugin test: -timeout=%v: the time for a case must be longer than 0", o.caseTimeout)
	}
	p := sdktest.Plugin{Path: pathOrBuiltin, Args: pluginArgs, CaseTimeout: o.caseTimeout, OnlyCasePatterns: o.caseIDPatterns, ConfigEncoder: &hclEncoder}
	info, err := os.Stat(pathOrBuiltin)
	_, isBuiltin := builtins.All[pathOrBuiltin]
	if isBuiltin = isBuiltin && errors.Is(err, os.ErrNotExist); isBuiltin {
		p.Args, p.Config = []string{"plugin", "serve", pathOrBuiltin}, builtins.DevPluginConfigs[pathOrBuiltin]
		if p.Path, err = os.Executable(); err == nil {
			info, err = os.Stat(p.Path)
		}
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("plugin test %s: there is no such file; is the plugin built?", pathOrBuiltin)
	case err != nil:
		return fmt.Errorf("plugin test: %w", err)
	case info.IsDir():
		return fmt.Errorf("plugin test %s: that is a directory; give the path of the program in it", pathOrBuiltin)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("plugin test %s: that file is not executable", pathOrBuiltin)
	}
	if o.suiteConfigFile == "" && !isBuiltin {
		beside := filepath.Join(filepath.Dir(pathOrBuiltin), pluginTestFile)
		if _, err := os.Stat(beside); err == nil {
			o.suiteConfigFile = beside
		}
	}
	if o.suiteConfigFile != "" {
		if err := readTestConfig(s, o.suiteConfigFile, &p); err != nil {
			return err
		}
	}
	for file, body := range map[string]*map[string]any{o.pluginConfigFile: &p.Config, o.runningTaskConfigFile: &p.Tasks.LongRunning} {
		if file != "" {
			if err := readConfigBody(s, file, body); err != nil {
				return err
			}
		}
	}
	ctx, kill, stop := contextsUntilInterrupts(ctx, s)
	defer stop()
	if err := runTestSuite(ctx, kill, o, p, s); err != nil {
		return &cli.ExitError{Code: 1, Err: fmt.Errorf("plugin test %s: %w", pathOrBuiltin, err)}
	}
	return nil
}

// runTestSuite runs the test suite for p and prints the results. The end of ctx stops the suite after the current case,
// and the end of untilKill kills the plugin.
func runTestSuite(ctx, untilKill context.Context, o testOptions, p sdktest.Plugin, s *cli.Streams) error {
	if !o.printJSON && o.junitFile == "" {
		return sdktest.CheckUntil(ctx, untilKill, s.Out, p)
	}
	var printErr error
	var results []sdktest.Result
	encoder := json.NewEncoder(s.JSONOutput())
	err := sdktest.CheckEach(ctx, untilKill, p, func(r sdktest.Result) {
		results = append(results, r)
		if !o.printJSON {
			r.Write(s.Out)
		} else if err := encoder.Encode(r); printErr == nil {
			printErr = err
		}
	})
	if o.junitFile != "" {
		printErr = errors.Join(printErr, writeJUnit(o.junitFile, p.Path, results))
	}
	return errors.Join(err, printErr)
}

// contextsUntilInterrupts returns two contexts: the first interrupt ends untilFirstInterrupt, so that the suite stops
// after the current case, and the second interrupt ends untilSecondInterrupt. stop ends both and releases the signal
// handler.
func contextsUntilInterrupts(ctx context.Context, s *cli.Streams) (untilFirstInterrupt, untilSecondInterrupt context.Context, stop func()) {
	untilFirstInterrupt, endFirst := context.WithCancelCause(ctx)
	untilSecondInterrupt, endKill := context.WithCancelCause(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-signals:
			case <-stopped:
				return
			}
			if untilFirstInterrupt.Err() != nil {
				endKill(errors.New("interrupted twice, the plugin was killed"))
				return
			}
			fmt.Fprintln(s.Err, "Stopping after this case. Press Ctrl-C again to kill the plugin.")
			endFirst(errors.New("interrupted"))
		}
	})
	return untilFirstInterrupt, untilSecondInterrupt, func() {
		signal.Stop(signals)
		close(stopped)
		wg.Wait()
		endFirst(nil)
		endKill(nil)
	}
}

// testFileVariables returns the variables of a file that configures a test: dir is the directory of the file.
func testFileVariables(path string) (map[string]cty.Value, error) {
	absPath, err := filepath.Abs(path)
	// The host interpolates the config block, so interpolations in the directory are escaped.
	return map[string]cty.Value{"dir": cty.StringVal(hclspec.Verbatim(filepath.Dir(absPath)))}, err
}

// readConfigBody sets body to the attributes of an HCL file.
func readConfigBody(s *cli.Streams, path string, body *map[string]any) error {
	parser := hclparse.NewParser()
	file, diags := parser.ParseHCLFile(path)
	var attributes hcl.Attributes
	if !diags.HasErrors() {
		attributes, diags = file.Body.JustAttributes()
	}
	values := map[string]cty.Value{}
	variables, err := testFileVariables(path)
	if err != nil {
		return err
	}
	for name, attribute := range attributes {
		value, valueDiags := attribute.Expr.Value(&hcl.EvalContext{Variables: variables})
		values[name], diags = value, append(diags, valueDiags...)
	}
	if diags.HasErrors() {
		return errors.Join(jobspec.WriteDiagnostics(s.Err, diags, parser.Sources()), &cli.ExitError{Code: 1})
	}
	object := cty.ObjectVal(values)
	text, err := ctyjson.Marshal(object, object.Type())
	if err == nil {
		err = json.Unmarshal(text, body)
	}
	return err
}

// readTestConfig sets the fields of p that the attributes of the file plugin_test.hcl describe.
func readTestConfig(s *cli.Streams, path string, p *sdktest.Plugin) error {
	parser := hclparse.NewParser()
	file, diags := parser.ParseHCLFile(path)
	refuse := func(diags hcl.Diagnostics) error {
		if err := jobspec.WriteDiagnostics(s.Err, diags, parser.Sources()); err != nil {
			return err
		}
		return &cli.ExitError{Code: 1}
	}
	if diags.HasErrors() {
		return refuse(diags)
	}
	attributes, diags := file.Body.JustAttributes()
	if diags.HasErrors() {
		return refuse(diags)
	}
	variables, err := testFileVariables(path)
	if err != nil {
		return err
	}
	for name, attribute := range attributes {
		switch name {
		case "runs":
			p.Tasks.LongRunning, diags = evalConfigBody(attribute, variables)
		case "ends":
			p.Tasks.Succeeds, diags = evalConfigBody(attribute, variables)
		case "fails":
			p.Tasks.Fails, diags = evalConfigBody(attribute, variables)
		case "attachment":
			p.Attachment, diags = evalConfigBody(attribute, variables)
		case "config":
			p.Config, diags = evalConfigBody(attribute, variables)
		case "shell":
			_, diags = evalConfigBody(attribute, withScript(variables, "exit 0"))
			p.Tasks.Shell = func(script string) map[string]any {
				b, _ := evalConfigBody(attribute, withScript(variables, script)) // the same attribute was evaluated without an error above
				return b
			}
		default:
			diags = hcl.Diagnostics{{
				Severity: hcl.DiagError,
				Summary:  "Unknown argument",
				Detail:   fmt.Sprintf("There is no %q here; runs, ends, fails, shell, attachment and config are possible.", name),
				Subject:  &attribute.NameRange,
			}}
		}
		if diags.HasErrors() {
			return refuse(diags)
		}
	}
	return nil
}

// withScript returns the variables and the variable script.
func withScript(variables map[string]cty.Value, script string) map[string]cty.Value {
	extended := maps.Clone(variables)
	// The host interpolates the config block, so interpolations in the script are escaped.
	extended["script"] = cty.StringVal(hclspec.Verbatim(script))
	return extended
}

// evalConfigBody evaluates an attribute and returns its value, which must be an object, in the form of a config block.
func evalConfigBody(attribute *hcl.Attribute, variables map[string]cty.Value) (map[string]any, hcl.Diagnostics) {
	value, diags := attribute.Expr.Value(&hcl.EvalContext{Variables: variables})
	if diags.HasErrors() {
		return nil, diags
	}
	var b map[string]any
	text, err := ctyjson.Marshal(value, value.Type())
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil || b == nil {
		return nil, hcl.Diagnostics{{
			Severity: hcl.DiagError,
			Summary:  "Not a config block",
			Detail:   fmt.Sprintf("%s must be an object: { name = value, … }.", attribute.Name),
			Subject:  attribute.Expr.Range().Ptr(),
		}}
	}
	return b, nil
}
