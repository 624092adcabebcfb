package model

import (
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// A jobFixture is a valid job with one group and one task. A test case makes it invalid.
type jobFixture struct {
	job   *api.Job
	group *api.TaskGroup
	task  *api.Task
}

func newJobFixture(edits ...func(*jobFixture)) *jobFixture {
	task := &api.Task{Name: "t", Driver: "d"}
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{task}}
	f := &jobFixture{&api.Job{ID: new("j"), TaskGroups: []*api.TaskGroup{group}}, group, task}
	for _, edit := range edits {
		edit(f)
	}
	Canonicalize(f.job)
	return f
}

func (f *jobFixture) setJobType(name string) { f.job.Type = &name }

// addGroup adds a group with one task, like the first group.
func (f *jobFixture) addGroup(name string) *api.TaskGroup {
	g := &api.TaskGroup{Name: &name, Tasks: []*api.Task{{Name: "t", Driver: "d"}}}
	f.job.TaskGroups = append(f.job.TaskGroups, g)
	return g
}

// A faultCase is a job and all errors Validate returns for it.
type faultCase struct {
	name string
	edit func(*jobFixture)
	want []string
}

func runFaultCases(t *testing.T, cases []faultCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, fault := range LeafFaults(Validate(newJobFixture(c.edit).job, JobLimits{})) {
				got = append(got, fault.Text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("faults\n got %q\nwant %q", got, c.want)
			}
		})
	}
}

func wantSingleFault(text string) []string { return []string{text} }
