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
	"sort"
	"strings"
	"sync"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
)

// templateDirs maps the kind of a plugin and a language to the directories of the templates for it.
var templateDirs = map[string][]string{
	"driver go":     {"driver", "drivertest", "go", "common"},
	"driver python": {"pythondriver", "python", "drivertest", "common"},
	"hook go":       {"hook", "hooktest", "go", "common"},
	"hook python":   {"pythonhook", "python", "hooktest", "common"},
	"device go":     {"device", "devicetest", "go", "common"},
	"device python": {"pythondevice", "python", "devicetest", "common"},
}

const newHelp = `Create the source code of a %s: a directory NAME with a working program.

A program in Go needs Go to build. A released nomad-lite takes the sdk from the
module proxy. A nomad-lite that was built from a checkout takes the sdk from that
checkout, or from the directory that -replace names. A program in Python needs make
and Python with grpcio, and no sdk; the command says how to install grpcio if it is
missing.

Exit codes: 0, or 1 when nothing was made.`

// templatePython is the default of PYTHON in the Makefile of a program in Python.
const templatePython = "/usr/bin/python3"

// grpcioHelp says how to install the only dependency of a program in Python. The package protobuf is a dependency of the
// distributions' packages, but not of grpcio on pypi.org.
const grpcioHelp = `    Debian, Ubuntu  apt-get install python3-grpcio python3-protobuf
    Fedora          dnf install python3-grpcio python3-protobuf
    Alpine          apk add py3-grpcio py3-protobuf
    Arch            pacman -S python-grpcio python-protobuf
    others          python3 -m venv venv && venv/bin/pip install grpcio protobuf
                    make PYTHON=$PWD/venv/bin/python3
`

//go:generate ./template/python/generate.sh

//go:embed template/common template/go template/driver template/drivertest template/hook template/hooktest template/device template/devicetest
//go:embed template/python/*.tmpl template/python/src template/pythondriver template/pythonhook template/pythondevice
var pluginTemplates embed.FS

const sdkModule = "github.com/nomad-lite/nomad-lite"

func newNewCommand(s *cli.Streams) *cobra.Command {
	return cli.NewGroupCommand("new", "Create the source code of a plugin",
		newNewPluginCommand(s, "driver", "task driver"),
		newNewPluginCommand(s, "hook", "hook"),
		newNewPluginCommand(s, "device", "device plugin"),
	)
}

// newNewPluginCommand returns the command `plugin new KIND`.
func newNewPluginCommand(s *cli.Streams, kind, kindInMessages string) *cobra.Command {
	var lang, replaceDir string
	cmd := &cobra.Command{
		Use:   kind + " [flags] NAME",
		Short: "Create the source code of a " + kindInMessages,
		Long:  fmt.Sprintf(newHelp, kindInMessages),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("plugin new %[1]s: give the %[1]s one name, such as hello", kind)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if err := createPluginSource(s, kind, lang, args[0], replaceDir); err != nil {
				return fmt.Errorf("plugin new %s: %w", kind, err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&lang, "lang", "go", "`language` of the program: "+strings.Join(templateLanguages(kind), " or "))
	cmd.Flags().StringVar(&replaceDir, "replace", "", "build with the nomad-lite checkout in this `directory`")
	return cmd
}

// requirableVersionPattern matches the versions that a go.mod file can require. The version of a build from a modified
// checkout contains a + and does not match.
var requirableVersionPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v[^+]*$`) })

var pluginNamePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]*$`) })

// templateLanguages returns the programming languages for which there are templates of a kind of plugin.
func templateLanguages(pluginKind string) (names []string) {
	for key := range templateDirs {
		if lang, ok := strings.CutPrefix(key, pluginKind+" "); ok {
			names = append(names, lang)
		}
	}
	slices.Sort(names)
	return names
}

func createPluginSource(s *cli.Streams, kind, lang, name, replaceDir string) error {
	if !slices.Contains(templateLanguages(kind), lang) {
		return fmt.Errorf("-lang %s: a new %s is written in %s", lang, kind, strings.Join(templateLanguages(kind), " or "))
	}
	if lang != "go" && replaceDir != "" {
		return fmt.Errorf("-replace is for programs in Go, not in %s", lang)
	}
	if len(name) > 63 || !pluginNamePattern().MatchString(name) {
		return fmt.Errorf("%q is not a good name for a %s: a lower case letter, then letters, digits, - and _", name, kind)
	}
	if slices.Contains(builtins.Names(), name) {
		return fmt.Errorf("%q is the name of a builtin plugin; choose another", name)
	}
	if _, err := os.Lstat(name); err == nil {
		return fmt.Errorf("%s exists already; choose another name, or move it away", name)
	}
	mod := &sourceTemplateData{Name: name, GRPCIOHelp: grpcioHelp, templateDirs: templateDirs[kind+" "+lang]}
	if lang == "go" {
		if err := mod.setGoModuleFields(replaceDir); err != nil {
			return err
		}
	}
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	files, err := renderTemplates(mod)
	if err == nil {
		err = mod.writeFilesAndGoSum(files, name)
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
		fmt.Fprintf(s.Out, "%s/%s\n", name, file.relativePath)
	}
	build, config := "go build", ""
	if kind == "device" {
		config = " -config agent.hcl" // a device plugin is only started if the configuration names it
	}
	if lang == "python" {
		build = "make"
	}
	fmt.Fprintf(s.Err, `
Next:
  cd %[1]s
  %[2]s
  nomad-lite plugin test ./%[1]s
  nomad-lite run -plugin-dir .%[3]s %[1]s.nomad.hcl

To build and run it again after each change: nomad-lite plugin dev%[3]s
`, name, build, config)
	if lang == "python" && exec.Command(templatePython, "-c", "import grpc").Run() != nil {
		fmt.Fprintf(s.Err, "\nIt does not run yet: %s has no module grpc. Install grpcio:\n\n%s", templatePython, grpcioHelp)
	}
	if lang == "go" && mod.Replace == "" {
		if err := runGoModTidy(name); err != nil {
			fmt.Fprintf(s.Err, `
It does not build yet: the sdk of this nomad-lite (%s) could not be had.
Run go mod tidy in %s when it can be, or remove %[2]s and begin again with
-replace and the directory of a checkout of nomad-lite. Go says: %v
`, mod.Version, name, err)
		}
	}
	return nil
}

// sourceTemplateData is the data of the templates. For a program that is not in Go, the templates use only Name.
type sourceTemplateData struct {
	Name       string
	GRPCIOHelp string // how to install grpcio, for a program in Python
	Go         string // version for the go line of go.mod
	Version    string // version of nomad-lite for go.mod's require line, such as v0.1.0
	Replace    string // directory of a checkout for a replace line in go.mod; "" for no such line

	Indirect []moduleRequirement
	goSum    []byte

	templateDirs []string
}

type moduleRequirement struct {
	Path, Version string
}

// setGoModuleFields sets the fields that the templates of a Go module need. replaceDir is the value of -replace.
func (m *sourceTemplateData) setGoModuleFields(replaceDir string) error {
	m.Go, m.Version, m.Replace = goLanguageVersion(runtime.Version()), requirableVersion(version.String()), replaceDir
	if m.Replace == "" && version.Release == "" {
		m.Replace = findBuildCheckoutDir()
		if m.Replace == "" && !requirableVersionPattern().MatchString(m.Version) {
			return errors.New("this nomad-lite is no release, and the checkout that it was built from is not there; name one with -replace DIR")
		}
	}
	if m.Replace == "" {
		return nil
	}
	dir, err := filepath.Abs(m.Replace)
	if err != nil {
		return err
	}
	m.Replace, m.Version = dir, "v0.0.0"
	return m.copyCheckoutRequirements()
}

// copyCheckoutRequirements copies the requirements and go.sum of the checkout into the module, so that it builds
// without requests for versions or checksums.
func (m *sourceTemplateData) copyCheckoutRequirements() error {
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
	m.goSum, err = os.ReadFile(filepath.Join(m.Replace, "go.sum"))
	return err
}

// removeUnlinkedRequirements removes from go.mod the checkout's requirements that are not linked into the plugin. It
// does not run go mod tidy, which would download the modules of tests. The copied go.sum stays larger than necessary.
func (m *sourceTemplateData) removeUnlinkedRequirements(dir string) error {
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
	sort.Slice(m.Indirect, func(i, j int) bool { return m.Indirect[i].Path < m.Indirect[j].Path })
	files, err := renderTemplates(m)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(files, func(file renderedFile) bool { return file.relativePath == "go.mod" })
	return m.writeFilesAndGoSum(files[i:i+1], dir)
}

// findBuildCheckoutDir returns the directory of the checkout from which this program was built, or "" if the directory
// no longer exists.
func findBuildCheckoutDir() string {
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
	relativePath string
	text         []byte
}

// renderedFileNames maps the name of a template to the name of its file where they differ. They differ because git
// would apply a template named .gitignore in this repository, and go:embed skips files whose names start with a dot or
// an underscore.
var renderedFileNames = map[string]string{
	"gitignore": ".gitignore",
	"ci.yml":    ".github/workflows/ci.yml",
	"main.py":   "src/__main__.py",
}

// renderTemplates returns the files of a new plugin: the results of the templates, and the other embedded files
// unchanged. "NAME" in the path of a template stands for the plugin's name.
func renderTemplates(m *sourceTemplateData) (files []renderedFile, err error) {
	for _, dir := range m.templateDirs {
		dir = "template/" + dir
		err := fs.WalkDir(pluginTemplates, dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := fs.ReadFile(pluginTemplates, path)
			if err != nil {
				return err
			}
			name, isTemplate := strings.CutSuffix(strings.TrimPrefix(path, dir+"/"), ".tmpl")
			if isTemplate {
				t, err := template.New(path).Parse(string(text))
				if err != nil {
					return err
				}
				var rendered bytes.Buffer
				if err := t.Execute(&rendered, m); err != nil {
					return err
				}
				text = rendered.Bytes()
			}
			name = strings.ReplaceAll(name, "NAME", m.Name)
			if other, ok := renderedFileNames[name]; ok {
				name = other
			}
			files = append(files, renderedFile{name, text})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (m *sourceTemplateData) writeFilesAndGoSum(files []renderedFile, dir string) error {
	if len(m.goSum) > 0 {
		files = append(files, renderedFile{"go.sum", m.goSum})
	}
	for _, file := range files {
		path := filepath.Join(dir, file.relativePath)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, file.text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// runGoModTidy runs go mod tidy, which adds the versions and checksums of the dependencies to a module that was not
// copied from a checkout.
func runGoModTidy(dir string) error {
	cmd := exec.Command("go", "mod", "tidy")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// goLanguageVersion returns the version for the go line of go.mod: the language version without a patch release, because
// an older patch release of Go also builds the plugin. go mod tidy raises the version if a
// dependency requires it. For a development build of Go, which has no version, it returns a released version.
func goLanguageVersion(runtimeVersion string) string {
	if lang := goversion.Lang(runtimeVersion); lang != "" {
		return strings.TrimPrefix(lang, "go")
	}
	return "1.26"
}

// requirableVersion returns the module version of a version of this program, which is a release without the prefix v, or a
// module version.
func requirableVersion(programVersion string) string {
	if programVersion != "" && '0' <= programVersion[0] && programVersion[0] <= '9' {
		return "v" + programVersion
	}
	return programVersion
}
