// Package template is the hook template: it renders the template blocks of a
// task before the task starts, and again when their data have changed.
//
// It handles the text of the templates, the files that are rendered, the
// environment variables from templates, and the reaction to a change. It reads
// variables and services through the host, and files inside the directory of the
// task; a template cannot read anything else of the machine. The runner attaches
// the hook to tasks that have template blocks.
//
// One process serves all tasks of the node. It limits the cost of each template:
// steps, the size of its input and of its output.
package template
