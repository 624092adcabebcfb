package model

import (
	"regexp"
	"sync"
)

// lazyRegexp compiles a pattern on first use. A pattern with a repetition of a hundred costs
// 100 kB and as much time as all other initialization before main, in each process of this
// program, and few jobs use it.
func lazyRegexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
