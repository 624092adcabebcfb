package completion

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// installation is where the completion of a shell is for one user.
type installation struct {
	shell      string
	scriptPath string
	startFile  string // file that the shell reads at its start; empty if the shell finds the script by itself
}

// findInstallation returns where the completion of a shell belongs, by the XDG base directory
// specification. An empty name means the shell of the variable SHELL.
func findInstallation(shell string) (installation, error) {
	shell = cmp.Or(shell, filepath.Base(os.Getenv("SHELL")))
	if err := checkShell(shell); err != nil {
		return installation{}, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return installation{}, fmt.Errorf("find the home directory: %w", err)
	}
	dataDir := filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "nomad-lite")
	i := installation{shell: shell, scriptPath: filepath.Join(dataDir, "completion."+shell)}
	switch shell {
	case "bash":
		i.startFile = filepath.Join(home, ".bashrc")
	case "zsh":
		i.startFile = filepath.Join(cmp.Or(os.Getenv("ZDOTDIR"), home), ".zshrc")
	case "fish":
		configDir := cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
		i.scriptPath = filepath.Join(configDir, "fish", "completions", "nomad-lite.fish")
	}
	return i, nil
}

// startLine returns the line of the start file that reads the script, if the script exists.
func (i installation) startLine() string {
	path := "'" + strings.ReplaceAll(i.scriptPath, "'", `'\''`) + "'"
	return fmt.Sprintf("[ ! -r %s ] || . %s # completion of nomad-lite", path, path)
}

// install writes the script, adds the line to the start file unless the file has it, and reports both.
func (i installation) install(script []byte, report io.Writer) error {
	if err := os.MkdirAll(filepath.Dir(i.scriptPath), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(i.scriptPath, script, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(report, "Written: %s\n", i.scriptPath)
	if i.startFile != "" {
		text, err := os.ReadFile(i.startFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Contains(text, []byte(i.startLine()+"\n")) {
			if len(text) > 0 && text[len(text)-1] != '\n' {
				text = append(text, '\n')
			}
			if err := writeStartFile(i.startFile, append(text, i.startLine()+"\n"...)); err != nil {
				return err
			}
			fmt.Fprintf(report, "One line added: %s\n", i.startFile)
		}
	}
	_, err := fmt.Fprintf(report, "Open a new %s, and press tab after: nomad-lite job status\n", i.shell)
	return err
}

// uninstall removes the script, and the line from the start file, and reports both.
func (i installation) uninstall(report io.Writer) error {
	switch err := os.Remove(i.scriptPath); {
	case err == nil:
		fmt.Fprintf(report, "Removed: %s\n", i.scriptPath)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if i.startFile == "" {
		return nil
	}
	text, err := os.ReadFile(i.startFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	without := bytes.ReplaceAll(text, []byte(i.startLine()+"\n"), nil)
	if len(without) == len(text) {
		return nil
	}
	if err := writeStartFile(i.startFile, without); err != nil {
		return err
	}
	_, err = fmt.Fprintf(report, "One line removed: %s\n", i.startFile)
	return err
}

// writeStartFile replaces the content of a start file, and keeps its mode and its links: start files are
// often links into a directory under version control.
func writeStartFile(path string, text []byte) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return cli.ReplaceFile(path, text, mode)
}
