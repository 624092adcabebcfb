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

	"github.com/nomad-lite/nomad-lite/internal/replacefile"
)

// installation has the paths at which the completion of a shell is installed for the current user.
type installation struct {
	shell          string
	scriptPath     string
	shellStartFile string // file such as .bashrc, which must read the script; empty if the shell finds the script by itself
}

// resolveInstallationPaths returns the installation paths for a shell, by the XDG base directory
// specification. An empty name means the shell of the variable SHELL.
func resolveInstallationPaths(shell string) (installation, error) {
	shell = cmp.Or(shell, filepath.Base(os.Getenv("SHELL")))
	if err := checkShellSupported(shell); err != nil {
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
		i.shellStartFile = filepath.Join(home, ".bashrc")
	case "zsh":
		i.shellStartFile = filepath.Join(cmp.Or(os.Getenv("ZDOTDIR"), home), ".zshrc")
	case "fish":
		configDir := cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
		i.scriptPath = filepath.Join(configDir, "fish", "completions", "nomad-lite.fish")
	}
	return i, nil
}

// startFileSourceLine returns the line for the start file of the shell. The line reads the script if the script exists.
func (i installation) startFileSourceLine() string {
	path := "'" + strings.ReplaceAll(i.scriptPath, "'", `'\''`) + "'"
	return fmt.Sprintf("[ ! -r %s ] || . %s # completion of nomad-lite", path, path)
}

// install writes the script, and adds the line to the start file unless the file has the line. It writes to report what
// it has changed.
func (i installation) install(script []byte, report io.Writer) error {
	if err := os.MkdirAll(filepath.Dir(i.scriptPath), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(i.scriptPath, script, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(report, "Written: %s\n", i.scriptPath)
	if i.shellStartFile != "" {
		text, err := os.ReadFile(i.shellStartFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Contains(text, []byte(i.startFileSourceLine()+"\n")) {
			if len(text) > 0 && text[len(text)-1] != '\n' {
				text = append(text, '\n')
			}
			if err := replaceStartFileKeepingMode(i.shellStartFile, append(text, i.startFileSourceLine()+"\n"...)); err != nil {
				return err
			}
			fmt.Fprintf(report, "One line added: %s\n", i.shellStartFile)
		}
	}
	_, err := fmt.Fprintf(report, "Open a new %s, and press tab after: nomad-lite job status\n", i.shell)
	return err
}

// uninstall removes the script, and the line from the start file. It writes to report what it has changed.
func (i installation) uninstall(report io.Writer) error {
	switch err := os.Remove(i.scriptPath); {
	case err == nil:
		fmt.Fprintf(report, "Removed: %s\n", i.scriptPath)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if i.shellStartFile == "" {
		return nil
	}
	text, err := os.ReadFile(i.shellStartFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	without := bytes.ReplaceAll(text, []byte(i.startFileSourceLine()+"\n"), nil)
	if len(without) == len(text) {
		return nil
	}
	if err := replaceStartFileKeepingMode(i.shellStartFile, without); err != nil {
		return err
	}
	_, err = fmt.Fprintf(report, "One line removed: %s\n", i.shellStartFile)
	return err
}

// replaceStartFileKeepingMode replaces the content of a start file, and keeps its mode. If the start file is a symbolic
// link, for example into a directory under version control, it replaces the content of the target.
func replaceStartFileKeepingMode(path string, text []byte) error {
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return replacefile.Write(path, text, mode)
}
