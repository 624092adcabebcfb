package jobspec

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// sourceRanges maps the joined path of each block and attribute of the job (see rangeKey) to its position in the file.
type sourceRanges map[string]hcl.Range

func rangeKey(path []string) string { return strings.Join(path, "\x00") }

func (r sourceRanges) addRange(path []string, rng hcl.Range) {
	key := rangeKey(path)
	if _, taken := r[key]; !taken {
		r[key] = rng
	}
}

// addPathAlias records that a part of the job was written at another path.
func (r sourceRanges) addPathAlias(path, written []string) {
	if rng, ok := r[rangeKey(written)]; ok {
		r.addRange(path, rng)
	}
}

// Range returns the source range of a part of the job: the header of a block, or an attribute. The
// path alternates as in the file: the type of a block, then its label or, for a repeatable block
// without a label, its index among the blocks of its type, then the path inside the block:
//
//	f.Range("group", "web", "task", "app", "template", "0", "destination")
//
// If the file does not have the exact path, Range returns the innermost enclosing part. It returns
// false if no range is recorded, as for a job in the JSON of the API.
func (f *File) Range(path ...string) (hcl.Range, bool) {
	for n := len(path); n >= 0; n-- {
		if rng, ok := f.ranges[rangeKey(path[:n])]; ok {
			return rng, true
		}
	}
	return hcl.Range{}, false
}

// RangeOfName returns the source range of the first attribute or block with this name inside a part of the
// job, at any depth. If the part has none, RangeOfName returns the range of the part, like [File.Range].
func (f *File) RangeOfName(name string, path ...string) (hcl.Range, bool) {
	prefix, suffix := rangeKey(path)+"\x00", "\x00"+name
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
	return f.Range(path...)
}
