// Package model holds what is known about the nouns of a job: canonical form,
// validation, warnings, and what this build cannot run.
//
// The nouns themselves are the types of github.com/hashicorp/nomad/api; this
// package has no second set. It reads no file, starts nothing and knows no
// node: the job comes in as a value and the answer is a value. Everything here
// may be called from several goroutines for different jobs.
//
// The order is always the same: Canonicalize once, which takes any job at all,
// then Validate, Warnings and Refusals in any order, which take what it left.
package model
