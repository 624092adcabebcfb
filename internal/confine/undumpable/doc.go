// Package undumpable keeps other processes from tracing a program of root that imports it. It has no
// functions: it works while the program's packages are initialized.
//
// A process that is not dumpable can be traced only by a process with CAP_SYS_PTRACE, which no task has by
// default: the same applies to its files root, cwd, exe, fd, environ, mem and maps in /proc, and to
// process_vm_readv(2). Without this package, the kernel also lets a process of the same user trace it whose
// capabilities include those of the traced process. The programs that the process executes are dumpable again.
//
// The process stays dumpable unless its effective user is root, because the kernel makes root the owner of the
// /proc entries of a process that is not dumpable: an agent that is not root could not write the id maps of a
// task in a user namespace, and could not compare the programs of its helpers.
package undumpable
