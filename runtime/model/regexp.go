package model

import (
	"regexp"
	"sync"
)

// lazily compiles a pattern on first use. A pattern with a repetition of a hundred costs
// 100 kB and as much time as all other initialization before main, in each process of this
// program, and few jobs use it.
func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
