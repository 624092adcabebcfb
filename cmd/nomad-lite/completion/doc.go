// Package completion has the command "completion", which prints the completion of a shell, or installs it for
// the user.
package completion
