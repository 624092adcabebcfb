// Package output writes the results of commands: pages of tables for people, and JSON or Go
// templates for programs.
//
// Text from an agent is written as cells of a page, which remove control characters. They do so even if the output is a
// pipe, because the reader of the pipe can write to a terminal.
package output
