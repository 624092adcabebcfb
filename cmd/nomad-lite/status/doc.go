// Package status has the command "nomad-lite status", which finds an object of any kind by the
// prefix of its id and runs the command that shows it.
package status
