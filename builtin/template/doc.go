// Package template is the hook template: it renders the template blocks of a
// task before the task starts, and again when what they read has changed.
//
// It owns the text of the templates, the files that come of them, the variables
// that these give to the environment, and what is done about a change. It reads
// variables and services through the host, and files inside the directory of
// the task; nothing else of the machine can be seen from a template. The runner
// attaches it to tasks that have template blocks.
//
// One process serves all tasks of the node. What a template may cost it is
// limited: steps, the size of what it reads and of what comes of it.
package template
