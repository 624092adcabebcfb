package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// fmtFlags are the flags of the command fmt. Nomad has the same.
type fmtFlags struct {
	checkOnly   bool
	listChanged bool
	writeFiles  bool
	recursive   bool
}

// NewCommand returns the command "fmt".
func NewCommand(s *cli.Streams) *cobra.Command {
	var flags fmtFlags
	cmd := &cobra.Command{
		Use:   "fmt [flags] [PATH...]",
		Short: "Format job files in the canonical style",
		Long: `Format job files in the canonical style.

Each PATH is a file whose name ends in .nomad or .hcl, a directory with such
files, or - for standard input, which is written to standard output. Without a
PATH the working directory is taken.

Exit codes: 0, or 1 when a file cannot be read or parsed, or when -check finds
a file that is not in the canonical style.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			f := &formatter{Streams: s, flags: flags}
			return f.formatPaths(args)
		},
	}
	cmd.Flags().BoolVar(&flags.checkOnly, "check", false, "change nothing: exit with 1 when a file is not in the canonical style")
	cmd.Flags().BoolVar(&flags.listChanged, "list", true, "print the names of the files that are not in the canonical style")
	cmd.Flags().BoolVar(&flags.writeFiles, "write", true, "write the result back into the files")
	cmd.Flags().BoolVar(&flags.recursive, "recursive", false, "take the files in subdirectories too")
	return cmd
}

// formatter formats files sequentially. After an invalid file it continues with the next file.
type formatter struct {
	*cli.Streams
	flags          fmtFlags
	anyFileChanged bool
	anyFileFailed  bool
}

func (f *formatter) formatPaths(args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	if len(args) == 1 && args[0] == "-" {
		return f.formatStdin()
	}
	for _, arg := range args {
		if err := f.formatFileOrDir(arg); err != nil {
			f.anyFileFailed = true
			fmt.Fprintln(f.Err, err)
		}
	}
	if f.anyFileFailed || f.flags.checkOnly && f.anyFileChanged {
		return &cli.ExitError{Code: 1}
	}
	return nil
}

func (f *formatter) formatStdin() error {
	text, err := io.ReadAll(io.LimitReader(f.In, jobspec.MaxTextSize+1))
	if err != nil {
		return fmt.Errorf("read standard input: %w", err)
	}
	formatted, err := f.formatText(text, "stdin")
	if err != nil {
		return err
	}
	if !f.flags.checkOnly {
		_, err = f.Out.Write(formatted)
		return err
	}
	if !bytes.Equal(text, formatted) {
		return &cli.ExitError{Code: 1}
	}
	return nil
}

// formatText returns the formatted text. For an invalid text it writes diagnostics to standard error, and returns an
// ExitError.
func (f *formatter) formatText(text []byte, name string) ([]byte, error) {
	formatted, diags := jobspec.Format(text, name)
	if err := jobspec.WriteDiagnostics(f.Err, diags, map[string][]byte{name: text}); err != nil {
		return nil, err
	}
	if diags.HasErrors() {
		return nil, &cli.ExitError{Code: 1}
	}
	return formatted, nil
}

//lint:ignore ST1005 Nomad's text
var errNotHCL = errors.New("Only .nomad and .hcl files can be processed using nomad fmt")

func hasJobFileExtension(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".nomad" || ext == ".hcl"
}

// formatFileOrDir formats a file, or the files of a directory.
func (f *formatter) formatFileOrDir(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("No file or directory at %s", path)
	}
	if err != nil {
		return fmt.Errorf("fmt: %w", err)
	}
	if !info.IsDir() {
		if !hasJobFileExtension(path) {
			return fmt.Errorf("%s: %w", path, errNotHCL)
		}
		return f.formatFile(path)
	}
	return filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("fmt: %w", err)
		case entry.IsDir() && at != path && (!f.flags.recursive || strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case !entry.Type().IsRegular() || !hasJobFileExtension(at):
			return nil
		}
		// An error of one file does not end the walk.
		if err := f.formatFile(at); err != nil {
			f.anyFileFailed = true
			fmt.Fprintln(f.Err, err)
		}
		return nil
	})
}

func (f *formatter) formatFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("fmt: %w", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("fmt: %w", err)
	}
	formatted, err := f.formatText(text, path)
	if exit := (*cli.ExitError)(nil); errors.As(err, &exit) {
		f.anyFileFailed = true
		return nil
	}
	if err != nil || bytes.Equal(text, formatted) {
		return err
	}
	f.anyFileChanged = true
	if f.flags.listChanged || f.flags.checkOnly {
		fmt.Fprintln(f.Out, path)
	}
	if f.flags.checkOnly || !f.flags.writeFiles {
		return nil
	}
	if err := replacefile.Write(path, formatted, info.Mode().Perm()); err != nil {
		return fmt.Errorf("fmt: %w", err)
	}
	return nil
}
