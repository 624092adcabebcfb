package model

import (
	"regexp"
	"sync"
)

// lazily compiles a pattern when it is first used. One that counts to a hundred
// takes 100 kB and as long as everything else before main, in each process of
// this program, and few jobs have a name to match.
func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
