// Package template is the hook template: it renders the template blocks of a
// task before the task starts, and again when their data have changed.
//
// It writes the rendered files, sets the environment variables from templates, and
// handles changes as change_mode configures. Other processes evaluate the templates:
// see packages evaluate and evaluators. The hook answers their queries: it reads
// variables and services through the host, and files inside the directory of the
// task. The task runner attaches the hook to tasks that have template blocks. One
// process serves all tasks of the node.
package template
