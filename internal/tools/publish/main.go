package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1)
	}
}

func run() error {
	version := flag.String("version", "", "`version` of the module, such as v0.1.0")
	output := flag.String("o", "", "`directory` of the module proxy's files")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: publish -version VERSION -o DIR [WORK TREE]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *version == "" || *output == "" {
		return errors.New("give the version and the directory of the files: publish -version v0.1.0 -o DIR")
	}
	root, err := worktree.Root(flag.Args())
	if err != nil {
		return err
	}
	return publish(root, *version, *output)
}

// publish writes the files that a module proxy serves for one version of the module in the work tree at root. It
// replaces files of an earlier call.
func publish(root, version, proxyDir string) error {
	goMod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return err
	}
	v := module.Version{Path: modfile.ModulePath(goMod), Version: version}
	if err := module.Check(v.Path, v.Version); err != nil {
		return err
	}
	escapedPath, err := module.EscapePath(v.Path)
	if err != nil {
		return err
	}
	escapedVersion, err := module.EscapeVersion(v.Version)
	if err != nil {
		return err
	}
	files, err := listFiles(root)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := zip.Create(&archive, v, files); err != nil {
		return fmt.Errorf("archive %s: %w", v, err)
	}

	dir := filepath.Join(proxyDir, filepath.FromSlash(escapedPath), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info := fmt.Sprintf("{\"Version\":%q,\"Time\":%q}\n", v.Version, time.Now().UTC().Format(time.RFC3339))
	for name, content := range map[string][]byte{
		escapedVersion + ".info": []byte(info),
		escapedVersion + ".mod":  goMod,
		escapedVersion + ".zip":  archive.Bytes(),
		"list":                   []byte(v.Version + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// listFiles returns the files of the work tree that git tracks or would add, if they exist.
func listFiles(root string) ([]zip.File, error) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of %s with git: %w", root, err)
	}
	var files []zip.File
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // the work tree no longer has the file
			continue
		case err != nil:
			return nil, err
		case info.Mode().IsRegular(): // a module has no symbolic links
			files = append(files, workTreeFile{root, name})
		}
	}
	return files, nil
}

// workTreeFile is a file of a work tree. It satisfies zip.File.
type workTreeFile struct{ root, name string }

func (f workTreeFile) Path() string                 { return f.name }
func (f workTreeFile) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(f.root, f.name)) }
func (f workTreeFile) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.root, f.name)) }
