// Package taskfiles reads the files of allocations for people who are not on the
// machine.
//
// Tasks own what lies in their directories: each name in a path may be a link by
// the time it is opened, a FIFO that nobody writes to, or a device. So a path is
// walked by hand, one open directory after the other (walk.go), which always
// knows where it is: it never leaves the directory of the allocation, and knows
// secrets under any name. What is no regular file is never opened.
//
// The package writes nothing. What tasks print is followed by runtime/logs.
package taskfiles
