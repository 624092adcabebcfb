// Package artifact is the hook behind the artifact blocks of a task: before the
// task starts, it downloads what they name and puts it into the task's directory.
//
// Each download is a process of its own ([Download]) that sees nothing but what
// it needs: it runs as nobody where it can, the kernel lets it write to one empty
// directory only (landlock), and it unpacks there. What has come of it is looked
// through, and moved to its destination, by the hook: by handles that cannot leave
// the task's directory, and only if all of it is allowed to be there.
//
// It refuses to read job files, to guess, and to talk to clouds: a source is
// http(s), git, or a file where the operator has allowed it.
package artifact
