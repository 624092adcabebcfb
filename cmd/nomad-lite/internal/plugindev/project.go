package plugindev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Project is the program of a plugin, and how to build it.
type Project struct {
	dir           string // directory of the sources, or of the program
	dirInMessages string // dir as the user has written it, for messages
	buildTool     buildTool
	programPath   string // path of the program; "" if the go command chooses its name
}

type buildTool int

const (
	noBuild buildTool = iota // another tool builds the program
	goBuild
	makeBuild
)

// OpenProject returns the project at path. path is a directory with a Go program or a Makefile, or a program that the
// user builds by other means. The Makefile must make a program with the name of the directory.
func OpenProject(path string) (*Project, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	resolved, err := filepath.Abs(path)
	if err == nil {
		resolved, err = filepath.EvalSymlinks(resolved)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if info.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("%s is neither a directory nor an executable file", path)
		}
		return &Project{dir: filepath.Dir(resolved), dirInMessages: filepath.Dir(path), programPath: resolved}, nil
	}
	p := &Project{dir: resolved, dirInMessages: path}
	goFiles, err := filepath.Glob(filepath.Join(globQuote(resolved), "*.go"))
	if err != nil {
		return nil, err
	}
	if len(goFiles) > 0 {
		p.buildTool = goBuild
		return p, nil
	}
	if _, err := os.Stat(filepath.Join(resolved, "Makefile")); err == nil {
		p.buildTool, p.programPath = makeBuild, filepath.Join(resolved, filepath.Base(resolved))
		return p, nil
	}
	return nil, fmt.Errorf("%s has neither Go files nor a Makefile: name the program that your build makes instead", path)
}

// globQuote returns a pattern of filepath.Glob that matches path only.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// WatchPaths returns the files and directories that must be watched: after a change in them the program must be built
// again.
func (p *Project) WatchPaths() []string {
	if p.buildTool == noBuild {
		return []string{p.programPath}
	}
	return []string{p.dir}
}

// IsIgnoredByWatch reports whether a change of a path below WatchPaths requires no build, because the path is the
// program itself, a document, a job file, a compiled test or a hidden file.
func (p *Project) IsIgnoredByWatch(path string) bool {
	name := filepath.Base(path)
	isProgram := path == p.programPath || path == filepath.Join(p.dir, filepath.Base(p.dir))
	return isProgram && p.buildTool != noBuild || strings.HasPrefix(name, ".") ||
		slices.Contains([]string{".md", ".hcl", ".pyc", ".test"}, filepath.Ext(name)) || strings.HasSuffix(name, "~")
}

// FindJobFile returns the job file of the project: NAME.nomad.hcl, or the only job file in the directory.
func (p *Project) FindJobFile(pluginName string) (string, error) {
	found, err := filepath.Glob(filepath.Join(globQuote(p.dir), "*.nomad.hcl"))
	if err != nil {
		return "", err
	}
	named := filepath.Join(p.dir, pluginName+".nomad.hcl")
	switch {
	case slices.Contains(found, named):
		return filepath.Join(p.dirInMessages, filepath.Base(named)), nil
	case len(found) == 1:
		return filepath.Join(p.dirInMessages, filepath.Base(found[0])), nil
	}
	return "", fmt.Errorf("%s has no %s.nomad.hcl, and %d other job files: name the job with -job FILE", p.dirInMessages, pluginName, len(found))
}

// BuildError holds the output of a build tool that has failed.
type BuildError struct{ Output string }

func (e *BuildError) Error() string { return strings.TrimRight(e.Output, "\n") }

// Build builds the program, and returns the path of a copy in emptyOutDir. withoutOptimizations applies to the Go
// packages below the project's directory. If the sources have an error, Build returns a *BuildError.
func (p *Project) Build(ctx context.Context, emptyOutDir string, withoutOptimizations bool) (string, error) {
	switch p.buildTool {
	case goBuild:
		args := []string{"build", "-o", emptyOutDir + string(filepath.Separator)}
		if withoutOptimizations {
			args = append(args, "-gcflags=./...=-N -l")
		}
		if err := p.runBuildTool(ctx, "go", append(args, ".")...); err != nil {
			return "", err
		}
		built, err := os.ReadDir(emptyOutDir)
		if err != nil {
			return "", err
		}
		if len(built) != 1 {
			return "", &BuildError{fmt.Sprintf("%s: go build made no program: is it package main?", p.dirInMessages)}
		}
		return filepath.Join(emptyOutDir, built[0].Name()), nil
	case makeBuild:
		if err := p.runBuildTool(ctx, "make"); err != nil {
			return "", err
		}
		if _, err := os.Stat(p.programPath); errors.Is(err, os.ErrNotExist) {
			return "", &BuildError{fmt.Sprintf("make made no %s: it must make a program with the name of the directory", p.programPath)}
		}
	}
	target := filepath.Join(emptyOutDir, filepath.Base(p.programPath))
	return target, copyProgram(p.programPath, target)
}

// placePattern matches a file name, relative to the project's directory, and a line number at the start of a line of a
// build tool's output.
var placePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^(?:\./)?([^\s:/][^\s:]*\.\w+:\d+)`) })

// runBuildTool runs a build tool in the directory of the project.
func (p *Project) runBuildTool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = p.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	exit := new(exec.ExitError)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !errors.As(err, &exit):
		return fmt.Errorf("build %s: %w", p.dirInMessages, err)
	}
	text := placePattern().ReplaceAllStringFunc(string(out), func(place string) string {
		return filepath.Join(p.dirInMessages, place)
	})
	if strings.TrimSpace(text) == "" {
		text = fmt.Sprintf("%s: %v", name, err)
	}
	return &BuildError{text}
}

func copyProgram(source, target string) (err error) {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

// filesHaveSameContent reports whether two files have the same content. It returns false if one of them cannot be read.
func filesHaveSameContent(a, b string) bool {
	one, err := os.ReadFile(a)
	if err != nil {
		return false
	}
	other, err := os.ReadFile(b)
	return err == nil && bytes.Equal(one, other)
}
