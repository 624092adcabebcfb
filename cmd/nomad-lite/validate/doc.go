// Package validate has the commands that check a job file, and that print the schemas by which it is checked, with plugins
// of this machine.
package validate
