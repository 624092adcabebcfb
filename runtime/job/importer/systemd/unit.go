package systemd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// setting is one assignment of a unit file.
type setting struct {
	section, key, value string
	at                  importer.Position
}

// unit is a unit with the settings of its file and its drop-in files, in their order.
type unit struct {
	name     string // with the suffix, such as web.service
	stem     string // without it
	prefix   string // before "@"
	instance string // between "@" and the suffix, escaped
	path     string
	settings []setting
}

const (
	serviceSuffix = ".service"
	timerSuffix   = ".timer"
)

// maxFileSize limits the size of each file that is read.
const maxFileSize = 1 << 20

func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(text) > maxFileSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFileSize)
	}
	return string(text), err
}

// parse returns the assignments of a unit file. Lines that end in a backslash continue, also over comments.
func parse(file, text string) ([]setting, error) {
	var settings []setting
	section := ""
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		at := importer.Position{File: file, Line: i + 1}
		line := strings.TrimSpace(lines[i])
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		for strings.HasSuffix(line, `\`) && i+1 < len(lines) {
			i++
			next := strings.TrimSpace(lines[i])
			if next != "" && (next[0] == '#' || next[0] == ';') {
				continue // a comment between continued lines is left out
			}
			line = strings.TrimSuffix(line, `\`) + " " + next
		}
		line = strings.TrimSuffix(line, `\`)
		if name, isSection := strings.CutPrefix(line, "["); isSection {
			name, closed := strings.CutSuffix(name, "]")
			if !closed {
				return nil, importer.Errorf(at, "%q is no section", line)
			}
			section = name
			continue
		}
		key, value, found := strings.Cut(line, "=")
		if !found || section == "" {
			return nil, importer.Errorf(at, "%q is no assignment in a section", line)
		}
		settings = append(settings, setting{section, strings.TrimSpace(key), strings.TrimSpace(value), at})
	}
	return settings, nil
}

// all returns the assignments of a key after the last empty one, which resets a list.
func (u *unit) all(section, key string) []setting {
	var found []setting
	for _, s := range u.settings {
		if s.section != section || s.key != key {
			continue
		}
		if s.value == "" {
			found = nil
			continue
		}
		found = append(found, s)
	}
	return found
}

// last returns the last assignment of a key. Its value is empty if there is none.
func (u *unit) last(section, key string) setting {
	all := u.all(section, key)
	if len(all) == 0 {
		return setting{}
	}
	return all[len(all)-1]
}

// SystemDirs are the directories of the units of the machine, in the order in which systemd searches them.
var SystemDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// load reads a unit by its path or its name, with its drop-in files.
func load(nameOrPath string, dirs []string) (*unit, error) {
	if filepath.Ext(nameOrPath) == "" || !strings.Contains(nameOrPath, "/") && !isUnitName(nameOrPath) {
		nameOrPath += serviceSuffix
	}
	name := filepath.Base(nameOrPath)
	u := &unit{name: name}
	var suffix string
	for _, suffix = range []string{serviceSuffix, timerSuffix} {
		if stem, found := strings.CutSuffix(name, suffix); found {
			u.stem = stem
			break
		}
	}
	if u.stem == "" {
		return nil, fmt.Errorf("%s: units of type service and timer can be converted", nameOrPath)
	}
	var isTemplate bool
	u.prefix, u.instance, isTemplate = strings.Cut(u.stem, "@")
	searched := dirs
	if strings.Contains(nameOrPath, "/") || exists(nameOrPath) {
		searched = append([]string{filepath.Dir(nameOrPath)}, dirs...)
	}
	files := []string{name}
	if isTemplate && u.instance != "" {
		files = append(files, u.prefix+"@"+suffix)
	}
	for _, file := range files {
		for _, dir := range searched {
			if path := filepath.Join(dir, file); u.path == "" && exists(path) {
				u.path = path
			}
		}
	}
	if u.path == "" {
		return nil, fmt.Errorf("%s: there is no such unit in %s", nameOrPath, strings.Join(searched, ", "))
	}
	if isTemplate && u.instance == "" {
		return nil, fmt.Errorf("%s is a template: name an instance, as in %s@NAME%s", nameOrPath, u.prefix, suffix)
	}
	paths := []string{u.path}
	dropIns, err := dropInFiles(u, searched, suffix)
	if err != nil {
		return nil, err
	}
	for _, path := range append(paths, dropIns...) {
		text, err := readFile(path)
		if err != nil {
			return nil, err
		}
		settings, err := parse(path, text)
		if err != nil {
			return nil, err
		}
		u.settings = append(u.settings, settings...)
	}
	return u, nil
}

func isUnitName(name string) bool {
	return strings.HasSuffix(name, serviceSuffix) || strings.HasSuffix(name, timerSuffix)
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// dropInFiles returns the files NAME.d/*.conf of a unit, sorted by their names: of files with the same name the first in the order of
// the directories counts.
func dropInFiles(u *unit, dirs []string, suffix string) ([]string, error) {
	names := []string{u.name + ".d"}
	if u.instance != "" {
		names = append(names, u.prefix+"@"+suffix+".d")
	}
	names = append(names, strings.TrimPrefix(suffix, ".")+".d")
	byName := map[string]string{}
	for _, dir := range dirs {
		for _, name := range names {
			entries, err := os.ReadDir(filepath.Join(dir, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, entry := range entries {
				if strings.HasSuffix(entry.Name(), ".conf") && byName[entry.Name()] == "" {
					byName[entry.Name()] = filepath.Join(dir, name, entry.Name())
				}
			}
		}
	}
	var paths []string
	for _, path := range byName {
		paths = append(paths, path)
	}
	slices.SortFunc(paths, func(a, b string) int {
		return cmp.Or(strings.Compare(filepath.Base(a), filepath.Base(b)), strings.Compare(a, b))
	})
	return paths, nil
}
