// Package execsession connects the terminal of the user to a command that runs in a task.
//
// It has the flags of such sessions, raw mode, the size of the terminal, and the escape that
// leaves a session. Packages alloc and job call it with the request that starts the command.
package execsession
