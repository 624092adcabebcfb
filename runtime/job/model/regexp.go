package model

import (
	"regexp"
	"sync"
)

// lazyRegexp compiles a pattern on first use. A pattern with a hundredfold repetition costs 100 kB and as much time as all other
// initialization before main, in each nomad-lite process, and few jobs use it.
func lazyRegexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
