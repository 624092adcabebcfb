package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/tools/manpages"
)

//go:embed files
var embedded embed.FS

// file is a file of an archive, a package or an image, or a directory if its mode says so.
type file struct {
	path    string // relative, with slashes
	mode    fs.FileMode
	content []byte
	kind    fileKind
}

type fileKind int

const (
	ordinary   fileKind = iota
	configFile          // a package keeps the user's changes
	debOnly             // in the package for Debian alone
	notDeb              // in the packages for RPM and Alpine
)

// texts are the files of a release that are the same on all systems.
type texts struct {
	readme, licence, changelog, installNotes []byte
	manPages                                 map[string][]byte // by file name
	completions                              map[string][]byte // by shell
	schemas                                  map[string][]byte // JSON Schemas for editors, by file name
	unit                                     []byte            // with programPlaceholder for the path of the program
	agentConfig                              []byte
	purge                                    []byte
}

const (
	configDir          = "etc/nomad-lite.d"
	programPlaceholder = "@PROGRAM@"
)

// readTexts reads the documents from the sources, and the manual pages, the completions and the unit from the program.
func readTexts(ctx context.Context, o options, program string) (texts, error) {
	t := texts{completions: map[string][]byte{}}
	var errs []error
	for name, content := range map[string]*[]byte{"README.md": &t.readme, "LICENSE": &t.licence, "CHANGELOG.md": &t.changelog, "docs/how-to/install.md": &t.installNotes} {
		var err error
		*content, err = os.ReadFile(filepath.Join(o.sourceDir, name))
		errs = append(errs, err)
	}
	t.agentConfig, t.purge = embeddedFile("agent.hcl"), embeddedFile("purge.sh")
	output := func(args ...string) []byte {
		out, err := exec.CommandContext(ctx, program, args...).Output()
		if err != nil {
			err = fmt.Errorf("run nomad-lite %s: %w", strings.Join(args, " "), err)
		}
		errs = append(errs, err)
		return out
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.completions[shell] = output("completion", shell)
	}
	t.schemas = map[string][]byte{
		"nomad-job.schema.json":   output("job", "schema"),
		"nomad-agent.schema.json": output("config", "schema"),
	}
	unit := output("agent", "-print-unit", "-config", "/"+configDir)
	// The program prints the path at which it has been built.
	built := []byte("ExecStart=" + program + " ")
	if bytes.Count(unit, built) != 1 {
		errs = append(errs, fmt.Errorf("the output of nomad-lite agent -print-unit does not have %q once: use a path without spaces for -out", built))
	}
	t.unit = bytes.Replace(unit, built, []byte("ExecStart="+programPlaceholder+" "), 1)
	pages, err := manpages.Generate(ctx, program, o.version, o.time)
	t.manPages = pages
	return t, errors.Join(append(errs, err)...)
}

// embeddedFile returns a file that is a part of this program.
func embeddedFile(name string) []byte {
	content, err := embedded.ReadFile("files/" + name)
	if err != nil {
		panic(err) // the name is a constant
	}
	return content
}

// installScript returns the script that installs the archive of a version.
func installScript(version string) []byte {
	return bytes.ReplaceAll(embeddedFile("install.sh"), []byte("@VERSION@"), []byte(version))
}

func (t texts) unitFor(program string) []byte {
	return bytes.ReplaceAll(t.unit, []byte(programPlaceholder), []byte(program))
}

// clientFiles returns the files of an archive for a system on which the program is a client.
func clientFiles(t texts, program []byte, programPath string) []file {
	return []file{
		{path: programPath, mode: 0o755, content: program},
		{path: "README.md", mode: 0o644, content: t.readme},
		{path: "LICENSE", mode: 0o644, content: t.licence},
		{path: "CHANGELOG.md", mode: 0o644, content: t.changelog},
	}
}

// archiveFiles returns the files of an archive for Linux. The directories bin, lib and share are those below /usr/local.
func archiveFiles(t texts, program []byte) []file {
	files := append(clientFiles(t, program, "bin/nomad-lite"),
		file{path: "INSTALL.md", mode: 0o644, content: t.installNotes},
		file{path: configDir + "/agent.hcl", mode: 0o644, content: t.agentConfig},
		file{path: "lib/systemd/system/nomad-lite.service", mode: 0o644, content: t.unitFor("/usr/local/bin/nomad-lite")},
		file{path: "lib/nomad-lite/purge", mode: 0o755, content: t.purge},
		file{path: "share/bash-completion/completions/nomad-lite", mode: 0o644, content: t.completions["bash"]},
		file{path: "share/zsh/site-functions/_nomad-lite", mode: 0o644, content: t.completions["zsh"]},
		file{path: "share/fish/vendor_completions.d/nomad-lite.fish", mode: 0o644, content: t.completions["fish"]},
	)
	for _, name := range slices.Sorted(maps.Keys(t.manPages)) {
		files = append(files, file{path: "share/man/man1/" + name, mode: 0o644, content: t.manPages[name]})
	}
	return files
}

// packageFiles returns the files of the packages.
func packageFiles(t texts, program []byte) []file {
	const doc = "usr/share/doc/nomad-lite/"
	files := []file{
		// An RPM removes only directories that are listed.
		{path: configDir, mode: fs.ModeDir | 0o755},
		{path: "usr/lib/nomad-lite", mode: fs.ModeDir | 0o755},
		{path: "usr/share/doc/nomad-lite", mode: fs.ModeDir | 0o755},
		{path: configDir + "/agent.hcl", mode: 0o644, content: t.agentConfig, kind: configFile},
		{path: "usr/bin/nomad-lite", mode: 0o755, content: program},
		{path: "usr/lib/nomad-lite/purge", mode: 0o755, content: t.purge},
		{path: "usr/lib/systemd/system/nomad-lite.service", mode: 0o644, content: t.unitFor("/usr/bin/nomad-lite")},
		{path: "usr/share/bash-completion/completions/nomad-lite", mode: 0o644, content: t.completions["bash"]},
		{path: "usr/share/zsh/vendor-completions/_nomad-lite", mode: 0o644, content: t.completions["zsh"], kind: debOnly},
		{path: "usr/share/zsh/site-functions/_nomad-lite", mode: 0o644, content: t.completions["zsh"], kind: notDeb},
		{path: "usr/share/fish/vendor_completions.d/nomad-lite.fish", mode: 0o644, content: t.completions["fish"]},
		{path: doc + "README.md", mode: 0o644, content: t.readme},
		{path: doc + "CHANGELOG.md", mode: 0o644, content: t.changelog},
		{path: doc + "INSTALL.md", mode: 0o644, content: t.installNotes},
		{path: doc + "copyright", mode: 0o644, content: t.licence},
	}
	for _, name := range slices.Sorted(maps.Keys(t.manPages)) {
		files = append(files, file{path: "usr/share/man/man1/" + name + ".gz", mode: 0o644, content: compress(t.manPages[name])})
	}
	return files
}

// compress returns gzip data without a name and a time.
func compress(content []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err) // a buffer accepts all writes
	}
	return b.Bytes()
}

// withParents returns the files, sorted, with all directories that contain them.
func withParents(files []file) []file {
	byPath := map[string]file{}
	for _, f := range files {
		byPath[f.path] = f
		for dir := path.Dir(f.path); dir != "."; dir = path.Dir(dir) {
			if _, found := byPath[dir]; !found {
				byPath[dir] = file{path: dir, mode: fs.ModeDir | 0o755}
			}
		}
	}
	var all []file
	for _, name := range slices.Sorted(maps.Keys(byPath)) {
		all = append(all, byPath[name])
	}
	return all
}
