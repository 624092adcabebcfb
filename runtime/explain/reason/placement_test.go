package reason

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

// A blocked evaluation is cancelled when a later one has placed the job.
func TestNewestUnplacedEvalIsNotOver(t *testing.T) {
	newEval := func(id, status string, index uint64, unplaced ...string) *api.Evaluation {
		e := &api.Evaluation{ID: id, Status: status, CreateIndex: index, FailedTGAllocs: map[string]*api.AllocationMetric{}}
		for _, group := range unplaced {
			e.FailedTGAllocs[group] = &api.AllocationMetric{}
		}
		return e
	}
	for name, test := range map[string]struct {
		evals []*api.Evaluation
		want  string
	}{
		"no evaluation":         {nil, ""},
		"the job was placed":    {[]*api.Evaluation{newEval("blocked", "canceled", 8, "web"), newEval("register", "complete", 8, "web"), newEval("later", "complete", 9)}, ""},
		"the job waits":         {[]*api.Evaluation{newEval("register", "complete", 8, "web"), newEval("blocked", "blocked", 8, "web")}, "blocked"},
		"the newest is shown":   {[]*api.Evaluation{newEval("new", "blocked", 9, "web"), newEval("old", "blocked", 8, "web")}, "new"},
		"an evaluation failed":  {[]*api.Evaluation{newEval("failed", "failed", 8, "web")}, "failed"},
		"it waits for its time": {[]*api.Evaluation{newEval("delayed", "pending", 9), newEval("blocked", "blocked", 8, "web")}, "blocked"},
	} {
		got := ""
		if e := NewestUnplacedEval(test.evals); e != nil {
			got = e.ID
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
