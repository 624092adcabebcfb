// Package jobfile reads the job files of commands and reports their errors with their places
// in the file.
//
// It gathers the facts about a node for package admission, which decides whether the job can run: from an
// agent, or from the plugins of this machine, which package localplugins starts. It also checks what only
// this machine has: the sources of templates, users and commands. Packages job and run use it.
package jobfile
