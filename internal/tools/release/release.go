package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/tools/site/docpages"
)

// sumsFile is the name of the file with the checksums of all other files of a release.
const sumsFile = "SHA256SUMS"

// checkReplaceable returns an error if a directory has a file that is not part of an earlier release, because writeRelease
// removes the directory.
func checkReplaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		isSite := e.Name() == "site" && docpages.IsSite(filepath.Join(dir, e.Name())) // of make site
		if e.Name() != sumsFile && !isSite && !strings.Contains(string(sums), "  "+e.Name()+"\n") {
			return fmt.Errorf("directory %s would be replaced, but %s is not a file of an earlier release: move it, or name another directory with -out", dir, e.Name())
		}
	}
	return nil
}

// writeRelease writes all files of a release into the output directory, and returns their names in order. It builds
// beside that directory, and replaces it at the end, so that a failure leaves no partial release.
func writeRelease(ctx context.Context, o options) ([]string, error) {
	if err := os.MkdirAll(filepath.Dir(o.outDir), 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(filepath.Dir(o.outDir), ".release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if work, err = filepath.EvalSymlinks(work); err != nil { // the program prints its own path without links
		return nil, err
	}
	out := filepath.Join(work, "dist")
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, err
	}

	programs := map[string]string{} // target to path
	for _, target := range o.targets {
		programs[target] = filepath.Join(work, strings.ReplaceAll(target, "/", "-"))
		if err := compile(ctx, o, target, programs[target]); err != nil {
			return nil, err
		}
	}
	texts, err := readTexts(ctx, o, programs[hostTarget()])
	if err != nil {
		return nil, err
	}
	for _, target := range o.targets {
		if err := writeTarget(o, target, programs[target], texts, out); err != nil {
			return nil, fmt.Errorf("%s: %w", target, err)
		}
	}
	if err := writeSite(o, out); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(out, "install.sh"), installScript(o.version), 0o755); err != nil {
		return nil, err
	}
	for name, schema := range texts.schemas {
		if err := os.WriteFile(filepath.Join(out, name), schema, 0o644); err != nil {
			return nil, err
		}
	}
	names, err := writeChecksums(out)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(o.outDir); err != nil {
		return nil, err
	}
	return names, os.Rename(out, o.outDir)
}

// writeTarget writes the files of a release for one system.
func writeTarget(o options, target, programPath string, t texts, out string) error {
	program, err := os.ReadFile(programPath)
	if err != nil {
		return err
	}
	system, arch, _ := strings.Cut(target, "/")
	name := fmt.Sprintf("nomad-lite_%s_%s_%s", o.version, system, arch)
	path := filepath.Join(out, name)
	if err := writeModuleList(path+".cdx.json", programPath, o); err != nil {
		return err
	}
	switch system {
	case "windows":
		return writeZip(path+".zip", name, clientFiles(t, program, "nomad-lite.exe"), o.time)
	case "darwin":
		return writeTarGz(path+".tar.gz", name, clientFiles(t, program, "bin/nomad-lite"), o.time)
	}
	if err := writeTarGz(path+".tar.gz", name, archiveFiles(t, program), o.time); err != nil {
		return err
	}
	if err := writeImage(path+".image.tar", o, arch, t, program); err != nil {
		return err
	}
	return writePackages(out, o, arch, packageFiles(t, program))
}

// writeSite writes an archive of the site of the documentation.
func writeSite(o options, out string) error {
	pages, err := docpages.Build(o.sourceDir, o.version)
	if err != nil {
		return fmt.Errorf("site of the documentation: %w", err)
	}
	var files []file
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		files = append(files, file{path: name, mode: 0o644, content: pages[name]})
	}
	name := fmt.Sprintf("nomad-lite_%s_docs", o.version)
	return writeTarGz(filepath.Join(out, name+".tar.gz"), name, files, o.time)
}

// writeChecksums writes SHA256SUMS with all files of the directory, and returns the names of all files.
func writeChecksums(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var names []string
	var sums strings.Builder
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&sums, "%s  %s\n", sha256Hex(content), e.Name())
		names = append(names, e.Name())
	}
	return append(names, sumsFile), os.WriteFile(filepath.Join(dir, sumsFile), []byte(sums.String()), 0o644)
}
