// Package output writes the results of commands: pages of tables for people, and JSON or Go
// templates for programs.
//
// Text of an agent goes through the cells of a page, which remove control characters. The
// package knows no object of the API; package tables does.
package output
