package scheduler_test

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Each new version of a job has the author of its request, with and without a source, and keeps it with another source.
func TestVersionHasTheAuthorOfItsRequest(t *testing.T) {
	memory := schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))
	s := scheduler.New(scheduler.Config{NodeID: "node", Store: memory, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()})
	alice, bob := state.Author{AccessorID: "1", TokenName: "alice"}, state.Author{AccessorID: "2", TokenName: "bob"}
	register := func(count int, author state.Author, submission *api.JobSubmission) {
		t.Helper()
		job := serviceJob(func(_ *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = &count })
		model.Canonicalize(job)
		ctx := t.Context()
		if author != (state.Author{}) {
			ctx = scheduler.WithAuthor(ctx, author)
		}
		if _, err := s.RegisterAndEvaluateJob(ctx, job, scheduler.RegisterOptions{Submission: submission}); err != nil {
			t.Fatal(err)
		}
	}
	register(0, alice, nil)
	register(1, bob, &api.JobSubmission{Source: "a", Format: "hcl2"})
	register(1, alice, &api.JobSubmission{Source: "b", Format: "hcl2"}) // the same version
	register(2, state.Author{}, nil)
	snapshot := memory.Snapshot()
	for version, want := range []state.Author{alice, bob, {}} {
		if got := snapshot.JobVersionAuthor(nil, webJobKey.Namespace, webJobKey.ID, uint64(version)); got != want {
			t.Errorf("version %d is by %+v, want %+v", version, got, want)
		}
	}
	for version, want := range []string{"", "b", ""} {
		got := ""
		if source := snapshot.JobSubmission(nil, webJobKey.Namespace, webJobKey.ID, uint64(version)); source != nil {
			got = source.Source
		}
		if got != want {
			t.Errorf("version %d has the source %q, want %q", version, got, want)
		}
	}
}
