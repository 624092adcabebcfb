// Package jobspec turns the text of a job file into an api.Job, and says where
// in the text a fault lies when that cannot be done.
//
// It owns the whole job language: HCL, HCL's JSON profile and the JSON of the
// HTTP API; variables, locals, dynamic blocks and functions; the survival of
// run-time references such as ${attr.kernel.name}; and the few normalisations
// that belong to parsing. The result is the job as it was written: defaults,
// validation and warnings about a job are the business of package model.
//
// The text may come from a stranger. Nesting is refused by a scan of the
// tokens before a recursive parser sees it, and evaluation runs on a budget,
// so that no input can exhaust the stack or the memory of the process. See
// DESIGN.md for what is bounded and how.
//
// Callers are the command line and the HTTP API.
package jobspec
