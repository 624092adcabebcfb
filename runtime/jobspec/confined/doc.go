// Package confined reads job files of strangers in a process of their own.
//
// The evaluation of HCL cannot be interrupted, and what a text costs shows only
// when it has been evaluated. So it happens in a child that has limits of memory
// and time, opens no files, and is killed when nobody waits for it any more. A
// text that needs more than that is refused; the agent does not notice.
//
// Parser is the side of the agent, Serve that of the child. Both are the same
// binary.
package confined
