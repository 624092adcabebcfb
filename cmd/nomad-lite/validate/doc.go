// Package validate has the commands that check a job file, and that print the JSON Schema of job files, with the
// plugins of this machine.
package validate
