// Package jobspec parses the text of a job file into an api.Job, and reports the position of
// errors in the text.
//
// It implements the whole job language: HCL, HCL's JSON profile and the JSON of the HTTP API;
// variables, locals, dynamic blocks and functions; the preservation of run-time references such as
// ${attr.kernel.name}; and the few normalisations that belong to parsing. The result is the job as
// written: package model sets defaults, validates the job and warns about it.
//
// The text may be untrusted. A scan of the tokens rejects deep nesting before a recursive parser
// reads the text, and evaluation has a budget, so that no input can exhaust the stack or the
// memory of the process. See DESIGN.md for the limits and their implementation.
//
// Callers are the command line and the HTTP API.
package jobspec
