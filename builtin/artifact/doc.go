// Package artifact is the hook behind the artifact blocks of a task: before the
// task starts, it downloads what they name and puts it into the task's directory.
//
// Each download is a process of its own ([Download]) that sees nothing but what
// it needs: as root's it has a user of its own, the kernel lets it write to one empty
// directory only (landlock), and it unpacks there. When it has ended, the hook takes
// that directory back, compares a checksum, looks through what is there, and moves it
// to its destination: by handles that cannot leave the task's directory, and only if
// all of it is allowed to be there.
//
// It refuses to read job files, to guess, and to talk to clouds: a source is
// http(s), git, or a file where the operator has allowed it.
package artifact
