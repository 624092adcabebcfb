package root

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
)

const (
	commandsFile  = "commands.txt"
	exitCodesFile = "exit-codes.txt"
)

// commandPromises returns a line for each command below cmd and for each of its flags. Hidden commands are not promised: each
// is a command of Nomad that only prints why nomad-lite does not have it. Hidden flags are promised: existing scripts have them.
func commandPromises(cmd *cobra.Command, path string) []string {
	lines := []string{path}
	for _, alias := range cmd.Aliases {
		lines = append(lines, path+", alias "+alias)
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name := path + " -" + f.Name
		value := f.Value.Type()
		if f.NoOptDefVal != "" && value != "bool" {
			value = strings.TrimSpace(value + " with an optional value")
		}
		if value != "" {
			lines = append(lines, name+": "+value)
		} else {
			lines = append(lines, name)
		}
		if f.Shorthand != "" {
			lines = append(lines, name+", also -"+f.Shorthand)
		}
	})
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			lines = append(lines, commandPromises(child, path+" "+child.Name())...)
		}
	}
	return lines
}

func TestReferenceCommandPromises(t *testing.T) {
	root := newRootCommand(&cli.Streams{})
	promises.Check(t, commandsFile, commandPromises(root, root.Name()))
}

func TestChangedCommandsBreakPromises(t *testing.T) {
	find := func(root *cobra.Command, words ...string) *cobra.Command {
		cmd, _, err := root.Find(words)
		if err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	for promise, edit := range map[string]func(root *cobra.Command){
		"nomad-lite job run -detach": func(root *cobra.Command) {
			cmd := find(root, "job", "run")
			kept := pflag.NewFlagSet("", pflag.ContinueOnError)
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Name != "detach" {
					kept.AddFlag(f)
				}
			})
			cmd.ResetFlags()
			cmd.Flags().AddFlagSet(kept)
		},
		"nomad-lite job stop -eval-priority": func(root *cobra.Command) {
			find(root, "job", "stop").Flags().Lookup("eval-priority").Value = new(ignoredFlag)
		},
		"nomad-lite version": func(root *cobra.Command) {
			find(root, "version").Hidden = true
		},
	} {
		root := newRootCommand(&cli.Streams{})
		edit(root)
		promises.CheckOnly(t, commandsFile, commandPromises(root, root.Name()), promise)
	}
}

// exitCodePromises returns a line for each exit code and each of its commands.
func exitCodePromises(codes []*cli.ExitCode) []string {
	lines := []string{"each command, the command succeeded: 0"}
	for _, c := range codes {
		for path := range strings.SplitSeq(c.Commands, ", ") {
			lines = append(lines, cmp.Or(path, "each command")+", "+c.Condition+": "+c.Text())
		}
	}
	return lines
}

func TestReferenceExitCodePromises(t *testing.T) {
	promises.Check(t, exitCodesFile, exitCodePromises(cli.ExitCodes))
}

func TestChangedExitCodesBreakPromises(t *testing.T) {
	const failed, notStarted = "job plan, the plan failed", "run, the command line or the job was rejected, and nothing was run"
	withChange := func(code *cli.ExitCode, edit func(*cli.ExitCode)) []string {
		changed := *code
		edit(&changed)
		codes := slices.Clone(cli.ExitCodes)
		codes[slices.Index(codes, code)] = &changed
		return exitCodePromises(codes)
	}
	promises.CheckOnly(t, exitCodesFile, withChange(cli.PlanFailed, func(c *cli.ExitCode) { c.Commands = "plan" }), failed)
	promises.CheckOnly(t, exitCodesFile, withChange(cli.NotStarted, func(c *cli.ExitCode) { c.Commands = "plugin dev" }), notStarted)
	numbers := withChange(cli.PlanFailed, func(c *cli.ExitCode) { c.Number, c.Commands = 3, "job plan" })
	promises.CheckOnly(t, exitCodesFile, append(numbers, "plan, the plan failed: 255"), failed)
}

// The table of exit codes names commands that exist and whose help has the code.
func TestExitCodesAreInTheHelp(t *testing.T) {
	root := newRootCommand(&cli.Streams{})
	for _, c := range cli.ExitCodes {
		for path := range strings.SplitSeq(c.Commands, ", ") {
			if path == "" {
				continue
			}
			cmd, rest, err := root.Find(strings.Fields(path))
			if err != nil || len(rest) > 0 {
				t.Errorf("%s: there is no command %q", c.Condition, path)
				continue
			}
			help := strings.Join(strings.Fields(cmd.Long), " ")
			_, help, _ = strings.Cut(help, "Exit codes")
			if !strings.Contains(help, strings.Fields(c.Text())[0]) && !strings.Contains(help, "as for 'job run'") && !strings.Contains(help, c.Added) {
				t.Errorf("the help of %q does not have the exit code %s: %s", path, c.Text(), c.Condition)
			}
		}
	}
}

// A command exits with 1, with a code of the table, or with the code of an error that it passes on.
func TestExitErrorsHaveCodesOfTheTable(t *testing.T) {
	found := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "subprocess_linux.go" {
			return err // the helper processes of that file are no commands
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, isLiteral := n.(*ast.CompositeLit)
			if !isLiteral {
				return true
			}
			if s, isSelector := literal.Type.(*ast.SelectorExpr); !isSelector || s.Sel.Name != "ExitError" {
				return true
			}
			found++
			for _, element := range literal.Elts {
				field, isField := element.(*ast.KeyValueExpr)
				if !isField || field.Key.(*ast.Ident).Name == "Code" && !isCodeOfTable(field.Value) {
					t.Errorf("%s: an exit code other than 1 is an entry of cli.ExitCodes: write cli.NAME.Number", files.Position(element.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil || found < 20 {
		t.Errorf("found %d exit errors, want at least 20; %v", found, err)
	}
}

func isCodeOfTable(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Value == "1"
	case *ast.BinaryExpr:
		return isCodeOfTable(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name == "Number" || e.Sel.Name == "Code"
	}
	return false
}
