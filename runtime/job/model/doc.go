// Package model implements the rules for jobs: canonical form, validation and warnings.
//
// Jobs are the types of github.com/hashicorp/nomad/api; this package defines no second set. It reads no files, starts nothing and
// does not depend on a node: its functions compute results from their arguments. They may be called concurrently for different
// jobs.
//
// The order is fixed: first Canonicalize, which accepts any job, then Validate and Warnings in any order, which need a canonical
// job. Package admission calls these rules for all callers that accept a job.
package model
