package model

import "github.com/hashicorp/nomad/api"

// Refusal is one part of a job that this build cannot run.
type Refusal struct {
	// Path leads to the block or attribute, as jobspec.File.Range takes it:
	// the block's type, then its label (if it has one) or its index (if there
	// may be several), and so on: "group", "web", "task", "app", "template", "0".
	Path []string
	// Reason says what is refused, why, and what to do instead.
	Reason string
}

func (r Refusal) Error() string { return r.Reason }

// Refusals returns what of a canonical job this build cannot run, in the order
// of the job. hasDriver tells whether a task driver of that name is there.
func Refusals(job *api.Job, hasDriver func(name string) bool) []Refusal {
	return nil
}
