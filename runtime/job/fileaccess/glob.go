package fileaccess

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxPatterns limits how many patterns one pattern's alternatives result in.
const maxPatterns = 1_000

// Glob returns the paths of regular files below dir that match a pattern, relative to dir and sorted. In a pattern, *, ? and
// [a-z] match parts of a name, ** matches any number of directories, and {a,b} alternatives. A file or directory the text may not
// read is an error, and so is a match that cannot be looked up.
func (r *Reader) Glob(dir, pattern string) ([]string, error) {
	a, err := r.open(filepath.Join(dir, pattern))
	if err != nil {
		return nil, err
	}
	defer a.closeAll()
	patterns, err := expandAlternatives(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	g := &globbing{access: a, found: map[string]bool{}}
	for _, p := range patterns {
		base, names := a.absolute(dir), strings.Split(path.Clean(strings.TrimLeft(filepath.ToSlash(p), "/")), "/")
		for len(names) > 0 && names[0] == ".." {
			base, names = filepath.Dir(base), names[1:]
		}
		for _, name := range names {
			if _, err := path.Match(name, ""); err != nil {
				return nil, fmt.Errorf("pattern %q: %w", pattern, err)
			}
		}
		if err := g.globIn(base, names); err != nil {
			return nil, err
		}
	}
	matches := make([]string, 0, len(g.found))
	for match := range g.found {
		relative, err := filepath.Rel(a.absolute(dir), match)
		if err != nil {
			return nil, err
		}
		matches = append(matches, filepath.ToSlash(relative))
	}
	slices.Sort(matches)
	return matches, nil
}

// expandAlternatives replaces a pattern by patterns without {a,b}.
func expandAlternatives(pattern string) ([]string, error) {
	done, todo := []string(nil), []string{pattern}
	for len(todo) > 0 {
		if len(done)+len(todo) > maxPatterns {
			return nil, fmt.Errorf("more than %d alternatives", maxPatterns)
		}
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		open, close, commas := findAlternatives(p)
		if open < 0 {
			done = append(done, strings.ReplaceAll(p, "[!", "[^"))
			continue
		}
		if close < 0 {
			return nil, errors.New("{ without }")
		}
		start := open + 1
		for _, end := range append(commas, close) {
			todo = append(todo, p[:open]+p[start:end]+p[close+1:])
			start = end + 1
		}
	}
	return done, nil
}

// findAlternatives returns the offsets of the first unescaped {, its }, and the commas between them. It returns -1 for a missing
// brace.
func findAlternatives(pattern string) (open, close int, commas []int) {
	open, close = -1, -1
	for i, depth := 0, 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '{':
			if depth++; depth == 1 {
				open = i
			}
		case c == ',' && depth == 1:
			commas = append(commas, i)
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				return open, i, commas
			}
		}
	}
	return open, close, commas
}

// globbing collects the matches for one Glob call.
type globbing struct {
	access *access
	found  map[string]bool // absolute paths as the text would name them
}

// globIn adds the matches for the names, which are patterns, in the directory at a path.
func (g *globbing) globIn(base string, names []string) error {
	defer g.access.closeSince(g.access.mark())
	t, err := g.access.resolvePath(base)
	if err == nil && t.dir != nil {
		err = g.glob(t.dir, base, names)
	}
	return g.unlessMissing(err, base)
}

// unlessMissing describes an error, but drops it if a directory does not exist or the kernel does not let this account read it.
func (g *globbing) unlessMissing(err error, path string) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return nil
	}
	return g.access.reader.describe(err, path)
}

// glob adds the matches for the names in the directory p at path at.
func (g *globbing) glob(p *place, at string, names []string) error {
	name, rest := names[0], names[1:]
	if name == "**" {
		if len(rest) > 0 { // ** matches no directory, too
			if err := g.glob(p, at, rest); err != nil {
				return err
			}
		}
		return g.eachEntry(p, at, func(entry string) error { return g.descend(p, at, entry, names, len(rest) == 0) })
	}
	if !strings.ContainsAny(name, `*?[\`) {
		return g.match(p, at, name, rest)
	}
	return g.eachEntry(p, at, func(entry string) error {
		if isMatch, _ := path.Match(name, entry); isMatch {
			return g.match(p, at, entry, rest)
		}
		return nil
	})
}

// match follows the entry in p that a pattern's name has matched.
func (g *globbing) match(p *place, at, entry string, rest []string) error {
	defer g.access.closeSince(g.access.mark())
	at = filepath.Join(at, entry)
	t, err := g.access.resolve(p, []string{entry})
	switch {
	case err != nil && len(rest) == 0 && errors.Is(err, fs.ErrNotExist):
		if _, isLink := p.dir.readlink(entry); isLink == nil {
			return fmt.Errorf("failed to stat (%s): the link leads to no file", at)
		}
		return nil
	case err != nil:
		return g.unlessMissing(err, at)
	case len(rest) > 0 && t.dir != nil:
		return g.glob(t.dir, at, rest)
	case len(rest) == 0 && t.dir == nil && t.info.mode.IsRegular():
		g.found[at] = true
	}
	return nil
}

// descend continues with ** in an entry of p if it is a directory. A link to a directory above itself is not followed. With
// withFiles, regular files match.
func (g *globbing) descend(p *place, at, entry string, names []string, withFiles bool) error {
	defer g.access.closeSince(g.access.mark())
	at = filepath.Join(at, entry)
	t, err := g.access.resolve(p, []string{entry})
	if err != nil {
		return g.unlessMissing(err, at)
	}
	if t.dir == nil {
		if withFiles && t.info.mode.IsRegular() {
			g.found[at] = true
		}
		return nil
	}
	for above := p; above != nil; above = above.parent {
		if above.info.id == t.dir.info.id {
			return nil
		}
	}
	return g.glob(t.dir, at, names)
}

// eachEntry calls do with each name in a directory, sorted.
func (g *globbing) eachEntry(p *place, at string, do func(name string) error) error {
	a := g.access
	isListable := p.isAllowed || a.isReadableAsRoot(p, p.info) || (p.isPublic && a.sourceIsFile || p.isBelowRoot) && p.info.mode&0o004 != 0
	if p.isForbidden {
		return g.access.reader.describe(errForbidden, at)
	}
	if !isListable {
		return g.access.reader.describe(errRefused, at)
	}
	names, err := p.dir.list(a.count)
	if err != nil {
		return g.unlessMissing(err, at)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := do(name); err != nil {
			return err
		}
	}
	return nil
}
