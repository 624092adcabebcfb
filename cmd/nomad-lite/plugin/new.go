package plugin

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	goversion "go/version"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
)

const newHelp = `Start a %s of your own: a directory NAME with a Go program that works.

It needs Go to build. A released nomad-lite takes the sdk from the module proxy. A
nomad-lite that was built from a checkout takes the sdk from that checkout, or from
the directory that -replace names.

Exit codes: 0, or 1 when nothing was made.`

//go:embed template/plugin template/driver template/hook
var pluginTemplates embed.FS

const sdkModule = "github.com/nomad-lite/nomad-lite"

func newNewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("new", "Begin a plugin of your own",
		newNewPluginCommand(s, "driver", "task driver"),
		newNewPluginCommand(s, "hook", "hook"),
	)
}

// newNewPluginCommand returns the command that creates plugins of a kind. what names the kind in
// messages.
func newNewPluginCommand(s *cli.Streams, kind, what string) *cobra.Command {
	var replaceDir string
	cmd := &cobra.Command{
		Use:   kind + " [flags] NAME",
		Short: "Begin a " + what,
		Long:  fmt.Sprintf(newHelp, what),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("plugin new %[1]s: give the %[1]s one name, such as hello", kind)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if err := newPlugin(s, kind, args[0], replaceDir); err != nil {
				return fmt.Errorf("plugin new %s: %w", kind, err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&replaceDir, "replace", "", "build with the nomad-lite checkout in this `directory`")
	return cmd
}

// requirableVersionPattern matches the versions that a go.mod file can require. A build of a modified
// checkout has another version.
var requirableVersionPattern = regexp.MustCompile(`^v[^+]*$`)

var pluginNamePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)

func newPlugin(s *cli.Streams, kind, name, replace string) error {
	if len(name) > 63 || !pluginNamePattern.MatchString(name) {
		return fmt.Errorf("%q is not a good name for a %s: a lower case letter, then letters, digits, - and _", name, kind)
	}
	if slices.Contains(builtins.Names(), name) {
		return fmt.Errorf("%q is the name of a builtin plugin; choose another", name)
	}
	if _, err := os.Lstat(name); err == nil {
		return fmt.Errorf("%s exists already; choose another name, or move it away", name)
	}
	mod, err := describeModule(kind, name, replace)
	if err != nil {
		return err
	}
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	files, err := renderTemplates(mod)
	if err == nil {
		err = mod.writeFiles(files, name)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(name))
	}
	if mod.Replace != "" {
		if err := mod.removeUnlinkedRequirements(name); err != nil {
			return errors.Join(err, os.RemoveAll(name))
		}
	}
	for _, file := range files {
		fmt.Fprintf(s.Out, "%s/%s\n", name, file.name)
	}
	fmt.Fprintf(s.Err, `
Next:
  cd %[1]s
  go build
  nomad-lite plugin test ./%[1]s
  nomad-lite run -plugin-dir . %[1]s.nomad.hcl
`, name)
	if mod.Replace == "" {
		if err := runModTidy(name); err != nil {
			fmt.Fprintf(s.Err, `
It does not build yet: the sdk of this nomad-lite (%s) could not be had.
Run go mod tidy in %s when it can be, or remove %[2]s and begin again with
-replace and the directory of a checkout of nomad-lite. Go says: %v
`, mod.Version, name, err)
		}
	}
	return nil
}

// moduleData is the data of the templates for a new Go module.
type moduleData struct {
	Name    string
	Kind    string // driver or hook
	Go      string
	Version string // version of nomad-lite
	Replace string // directory of a checkout for a replace line in go.mod; "" for no such line

	Indirect []moduleRequirement
	sum      []byte
}

type moduleRequirement struct {
	Path, Version string
}

func describeModule(kind, name, replace string) (*moduleData, error) {
	m := &moduleData{Name: name, Kind: kind, Go: strings.TrimPrefix(runtime.Version(), "go"), Version: version.String(), Replace: replace}
	if m.Replace == "" && version.Release == "" {
		m.Replace = checkoutDir()
		if m.Replace == "" && !requirableVersionPattern.MatchString(m.Version) {
			return nil, errors.New("this nomad-lite is no release, and the checkout that it was built from is not there; name one with -replace DIR")
		}
	}
	if m.Replace == "" {
		return m, nil
	}
	dir, err := filepath.Abs(m.Replace)
	if err != nil {
		return nil, err
	}
	m.Replace, m.Version = dir, "v0.0.0"
	return m, m.copyDependencies()
}

// copyDependencies copies the dependencies of the checkout into the module, so that it builds without
// requests for versions or checksums.
func (m *moduleData) copyDependencies() error {
	cmd := exec.Command("go", "mod", "edit", "-json", filepath.Join(m.Replace, "go.mod"))
	out, err := cmd.Output()
	if err != nil {
		var exitErr *exec.ExitError
		if errors.As(err, &exitErr) {
			err = errors.New(strings.TrimSpace(string(exitErr.Stderr)))
		}
		return fmt.Errorf("read the module in %s: %w", m.Replace, err)
	}
	var goMod struct {
		Module  struct{ Path string }
		Go      string
		Require []moduleRequirement
	}
	if err := json.Unmarshal(out, &goMod); err != nil {
		return fmt.Errorf("read the module in %s: %w", m.Replace, err)
	}
	if goMod.Module.Path != sdkModule {
		return fmt.Errorf("%s is module %s, not a checkout of %s", m.Replace, goMod.Module.Path, sdkModule)
	}
	m.Indirect, m.Go = goMod.Require, goMod.Go
	m.sum, err = os.ReadFile(filepath.Join(m.Replace, "go.sum"))
	return err
}

// removeUnlinkedRequirements removes from go.mod the modules of the checkout that are not
// linked into the plugin. The copied go.sum is larger than necessary, which go mod tidy
// corrects; go mod tidy itself would download the modules of tests.
func (m *moduleData) removeUnlinkedRequirements(dir string) error {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		var exitErr *exec.ExitError
		if errors.As(err, &exitErr) {
			err = errors.New(strings.TrimSpace(string(exitErr.Stderr)))
		}
		return fmt.Errorf("list the modules that the plugin links: %w", err)
	}
	linked := strings.Fields(string(out))
	m.Indirect = slices.DeleteFunc(m.Indirect, func(r moduleRequirement) bool { return !slices.Contains(linked, r.Path) })
	slices.SortFunc(m.Indirect, func(a, b moduleRequirement) int { return strings.Compare(a.Path, b.Path) })
	files, err := renderTemplates(m)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(files, func(file renderedFile) bool { return file.name == "go.mod" })
	return m.writeFiles(files[i:i+1], dir)
}

// checkoutDir returns the directory that this program was built from, "" if it does not exist.
func checkoutDir() string {
	_, file, _, ok := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "..", "..", "..")
	if !ok || !filepath.IsAbs(file) { // the program was built with -trimpath
		return ""
	}
	goMod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !bytes.HasPrefix(goMod, []byte("module "+sdkModule+"\n")) {
		return ""
	}
	return dir
}

type renderedFile struct {
	name string
	text []byte
}

// renderTemplates executes the templates of a kind, and the templates of all kinds. "NAME" in the
// name of a template stands for the plugin.
func renderTemplates(m *moduleData) (files []renderedFile, err error) {
	paths, err := fs.Glob(pluginTemplates, "template/"+m.Kind+"/*")
	if err != nil {
		return nil, err
	}
	common, err := fs.Glob(pluginTemplates, "template/plugin/*")
	if err != nil {
		return nil, err
	}
	for _, path := range append(paths, common...) {
		t, err := template.ParseFS(pluginTemplates, path)
		if err != nil {
			return nil, err
		}
		var renderedText bytes.Buffer
		if err := t.Execute(&renderedText, m); err != nil {
			return nil, err
		}
		name := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".tmpl"), "NAME", m.Name)
		// git would apply a template named .gitignore in this repository, and the binary
		// embeds no file whose name starts with a dot.
		switch name {
		case "gitignore":
			name = ".gitignore"
		case "ci.yml":
			name = ".github/workflows/ci.yml"
		}
		files = append(files, renderedFile{name, renderedText.Bytes()})
	}
	return files, nil
}

func (m *moduleData) writeFiles(files []renderedFile, dir string) error {
	if len(m.sum) > 0 {
		files = append(files, renderedFile{"go.sum", m.sum})
	}
	for _, file := range files {
		path := filepath.Join(dir, file.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, file.text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// runModTidy finds the versions and checksums of a module without a checkout.
func runModTidy(dir string) error {
	cmd := exec.Command("go", "mod", "tidy")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// GoLine returns the version for the go line of go.mod. The go command does not accept the
// version of a development build of Go.
func (m *moduleData) GoLine() string {
	if goversion.IsValid("go" + m.Go) {
		return m.Go
	}
	return "1.26"
}
