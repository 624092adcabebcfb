package jobspec

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// ranges remembers where each block and attribute of the job was written.
type ranges map[string]hcl.Range

func rangeKey(path []string) string { return strings.Join(path, "\x00") }

func (r ranges) add(path []string, rng hcl.Range) {
	key := rangeKey(path)
	if _, taken := r[key]; !taken {
		r[key] = rng
	}
}

// alias says that a part of the job was written at another path.
func (r ranges) alias(path, written []string) {
	if rng, ok := r[rangeKey(written)]; ok {
		r.add(path, rng)
	}
}

// Range says where a part of the job was written: the header of a block, or
// an attribute. The path alternates as in the file: the type of a block, then
// its label or, for a block without label that may be repeated, its number
// among its kind, then what is inside:
//
//	f.Range("group", "web", "task", "app", "template", "0", "destination")
//
// Where the exact path was not written, the answer is the innermost enclosing
// part that was. It is false when nothing is known, as for a job in the JSON
// of the API.
func (f *File) Range(path ...string) (hcl.Range, bool) {
	for n := len(path); n >= 0; n-- {
		if rng, ok := f.ranges[rangeKey(path[:n])]; ok {
			return rng, true
		}
	}
	return hcl.Range{}, false
}
