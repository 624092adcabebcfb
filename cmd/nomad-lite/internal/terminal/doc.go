// Package terminal has the terminal functions of commands: the detection of terminals, the removal
// of unsafe characters from text, colours, and lines that are redrawn in place.
//
// Package root gives all commands a SanitizingWriter in place of a terminal, so that no text of an agent or a task
// controls the terminal. Only programs that draw on it themselves get the terminal: LiveScreen, the command top, and a
// session with a terminal in a task.
//
// It imports no other package of nomad-lite.
package terminal
