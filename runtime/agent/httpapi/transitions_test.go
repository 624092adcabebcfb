package httpapi

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func TestTransitions(t *testing.T) {
	list := []tasksteps.Transition{{Time: time.Unix(0, 0).UTC(), Step: tasksteps.CallStopHooks, Result: tasksteps.Done, Next: tasksteps.None}}
	const asJSON = `"TransitionsByTask":{"t":[{"Next":"no step","Result":"done","Step":"call the Stop hooks","Time":"1970-01-01T00:00:00Z"}]}}`
	f := newFixture(t, func(c *Config) { setNode(c, stubNode{transitionsByTask: map[string][]tasksteps.Transition{"t": list}}) })
	f.putJob(t, "web")
	id := f.putAlloc(t, "web")
	f.runRequests(t, []requestCase{
		{"one allocation", "GET", "/v1/allocation/" + id + "/transitions", "", 200, `{"AllocID":"` + id + `",` + asJSON},
		{"all allocations", "GET", "/v1/client/transitions", "", 200, `[{"AllocID":"` + id + `",` + asJSON + `]`},
		{"another namespace", "GET", "/v1/client/transitions?namespace=x", "", 200, `[]`},
	})
}

func TestTransitionsThatTheNodeDoesNotHave(t *testing.T) {
	f := newFixture(t, nil)
	f.putJob(t, "web")
	id := f.putAlloc(t, "web")
	path := "/v1/allocation/" + id + "/transitions"
	f.runRequests(t, []requestCase{
		{"before the node has a runner", "GET", path, "", 404, "…has not started the allocation yet: repeat"},
		{"all allocations", "GET", "/v1/client/transitions", "", 200, `[]`},
	})
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error {
		alloc := *tx.Allocation(nil, id)
		alloc.ClientStatus = api.AllocClientStatusFailed
		tx.PutScheduledAllocation(&alloc)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.runRequests(t, []requestCase{{"after a restart of the agent", "GET", path, "", 404, "…the agent was restarted, the allocation was garbage collected, or "}})
}
