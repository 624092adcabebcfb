package completion

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

//go:embed nomad-lite.bash
var bashScript []byte

// zshPreamble is a script that loads the completion system of zsh if the user's configuration has not loaded it.
const zshPreamble = "#compdef nomad-lite\n(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit }\n"

// shells are the supported shells.
var shells = []string{"bash", "zsh", "fish"}

const completionHelp = `Complete commands, flags, ids, names and paths with the tab key.

"completion install" sets it up for your shell. To do that by hand, print the
script of a shell, and let the shell read it at its start.`

// NewCommand returns the command "completion" with its subcommands.
func NewCommand(s *cli.Streams) *cobra.Command {
	cmd := cli.NewGroupCommand("completion", "Install or print the shell completion", newInstallCommand(s), newUninstallCommand(s))
	cmd.Long = completionHelp
	for _, shell := range shells {
		cmd.AddCommand(&cobra.Command{
			Use:     shell,
			Short:   "Print the completion script of " + shell,
			Example: fmt.Sprintf("  nomad-lite completion %s > nomad-lite.%s", shell, shell),
			Args:    cli.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return writeCompletionScript(s.Out, cmd.Root(), shell)
			},
		})
	}
	return cmd
}

func writeCompletionScript(w io.Writer, root *cobra.Command, shell string) error {
	switch shell {
	case "bash":
		_, err := w.Write(bashScript)
		return err
	case "zsh":
		var script bytes.Buffer
		if err := root.GenZshCompletion(&script); err != nil {
			return err
		}
		_, err := io.WriteString(w, zshPreamble+string(bytes.TrimPrefix(script.Bytes(), []byte("#compdef nomad-lite\n"))))
		return err
	}
	return root.GenFishCompletion(w, true)
}

// installOptions are the flags of the commands install and uninstall.
type installOptions struct{ shell string }

func (o *installOptions) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.shell, "shell", "", "`name` of the shell: bash, zsh or fish; the default is the shell of the variable SHELL")
	cli.MustSetFlagCompletion(cmd, "shell", cobra.FixedCompletions(shells, cobra.ShellCompDirectiveNoFileComp))
}

func newInstallCommand(s *cli.Streams) *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:   "install [flags]",
		Short: "Install the completion for your shell",
		Long: `Write the completion script of your shell into your data directory, and for bash and
zsh a line that reads the script into .bashrc or .zshrc. It may be repeated, for
example after an update of nomad-lite.

Exit codes: 0; 1 if the shell is unknown, or a file cannot be written.`,
		Example: "  nomad-lite completion install\n  nomad-lite completion install -shell zsh",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := resolveInstallationPaths(o.shell)
			if err != nil {
				return err
			}
			var script bytes.Buffer
			if err := writeCompletionScript(&script, cmd.Root(), i.shell); err != nil {
				return err
			}
			return i.install(script.Bytes(), s.Out)
		},
	}
	o.register(cmd)
	return cmd
}

func newUninstallCommand(s *cli.Streams) *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:     "uninstall [flags]",
		Short:   "Uninstall the completion",
		Example: "  nomad-lite completion uninstall",
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			i, err := resolveInstallationPaths(o.shell)
			if err != nil {
				return err
			}
			return i.uninstall(s.Out)
		},
	}
	o.register(cmd)
	return cmd
}

func checkShellSupported(shell string) error {
	if slices.Contains(shells, shell) {
		return nil
	}
	return fmt.Errorf("no completion for the shell %q: choose one with -shell bash, -shell zsh or -shell fish (SHELL is %q)", shell, os.Getenv("SHELL"))
}
