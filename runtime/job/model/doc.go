// Package model implements the rules for jobs: canonical form, validation, warnings, and
// the features that this build does not support.
//
// Jobs are the types of github.com/hashicorp/nomad/api; this package defines no second set.
// It reads no files, starts nothing and does not depend on a node: its functions compute
// results from their arguments. They may be called concurrently for different jobs.
//
// The order is fixed: first Canonicalize, which accepts any job, then Validate, Warnings
// and UnsupportedParts in any order, which need a canonical job.
package model
