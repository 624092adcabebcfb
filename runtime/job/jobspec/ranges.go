package jobspec

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// sourceRangeByPath maps the joined path of each block and attribute of the job (see rangeKey) to its position in the
// file.
type sourceRangeByPath map[string]hcl.Range

func rangeKey(path []string) string { return strings.Join(path, "\x00") }

func (r sourceRangeByPath) addRangeIfAbsent(path []string, rng hcl.Range) {
	key := rangeKey(path)
	if _, taken := r[key]; !taken {
		r[key] = rng
	}
}

// addPathAlias records that the part of the job at path was written at writtenPath.
func (r sourceRangeByPath) addPathAlias(path, writtenPath []string) {
	if rng, ok := r[rangeKey(writtenPath)]; ok {
		r.addRangeIfAbsent(path, rng)
	}
}

// InnermostRange returns the source range of a part of the job: the header of a block, or an attribute. The
// path alternates as in the file: the type of a block, then its label or, for a repeatable block
// without a label, its index among the blocks of its type, then the path inside the block:
//
//	f.InnermostRange("group", "web", "task", "app", "template", "0", "destination")
//
// If the file does not have the exact path, InnermostRange returns the innermost enclosing part. It returns
// false if no range is recorded, as for a job in the JSON of the API.
func (f *ParsedFile) InnermostRange(path ...string) (hcl.Range, bool) {
	for n := len(path); n >= 0; n-- {
		if rng, ok := f.ranges[rangeKey(path[:n])]; ok {
			return rng, true
		}
	}
	return hcl.Range{}, false
}

// FirstRangeNamed returns the source range of the first attribute or block with this name inside a part of the
// job, at any depth. If the part has none, FirstRangeNamed returns the range of the part, like
// [ParsedFile.InnermostRange].
func (f *ParsedFile) FirstRangeNamed(name string, withinPath ...string) (hcl.Range, bool) {
	prefix, suffix := rangeKey(withinPath)+"\x00", "\x00"+name
	var first hcl.Range
	found := false
	for key, rng := range f.ranges {
		if strings.HasPrefix(key, prefix) && strings.HasSuffix(key, suffix) && (!found || rng.Start.Byte < first.Start.Byte) {
			first, found = rng, true
		}
	}
	if found {
		return first, true
	}
	return f.InnermostRange(withinPath...)
}
