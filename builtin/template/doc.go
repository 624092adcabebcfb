// Package template is the hook template: it renders the template blocks of a
// task before the task starts, and again when their data have changed.
//
// It parses and executes templates, writes the rendered files, sets the
// environment variables from templates, and handles changes as change_mode
// configures. It reads variables and services through the host, and files inside
// the directory of the task; a template cannot read anything else of the
// machine. The task runner attaches the hook to tasks that have template blocks.
//
// One process serves all tasks of the node. It limits the cost of each template:
// execution steps, the size of its input and of its output.
package template
