// Package output writes the results of commands: pages of tables for people, and JSON or Go
// templates for programs.
//
// Text of an agent goes through the cells of a page, which remove control characters, also in a pipe, whose
// reader can be a terminal on another machine. Package
// tables prints the objects of the API by means of this package.
package output
