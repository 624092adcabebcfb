//go:build !amd64

package confine

// fileOpeningSyscalls are the system calls of FileOpeningSyscalls that only some architectures have.
var fileOpeningSyscalls []uint32
