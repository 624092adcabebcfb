// Package shellquote quotes text for a POSIX shell, in messages with commands that a user can execute.
//
// It imports no other package of the module.
package shellquote
