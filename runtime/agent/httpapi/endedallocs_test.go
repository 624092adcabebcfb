package httpapi

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// TestListsHaveEventsOfEndedAllocations checks that each list of allocations has the events of an ended one, and that a filter
// can select by them.
func TestListsHaveEventsOfEndedAllocations(t *testing.T) {
	f := newFixture(t, nil)
	id := f.putFailedAlloc(t, "web")
	f.updateStore(t, func(tx *store.Txn) {
		placed := *tx.Allocation(nil, id)
		placed.EvalID, placed.DeploymentID = id, id
		tx.PutScheduledAllocation(&placed)
		tx.MarkAllocationEnded(id)
	})
	for _, url := range []string{
		"/v1/allocations", "/v1/allocations?per_page=1", "/v1/allocations?prefix=" + id, "/v1/job/web/allocations", "/v1/evaluation/" + id + "/allocations",
		"/v1/deployment/allocations/" + id, "/v1/node/" + f.config.NodeID + "/allocations", "/v1/allocation/" + id,
		`/v1/allocations?filter="/TaskStates/t/Events/0/Type"+==+"Driver+Failure"`,
	} {
		if reply := bodyText(f.send("GET", url, nil)); !strings.Contains(reply, "stat /bin/no") {
			t.Errorf("%s: %s", url, reply)
		}
	}
	if reply := bodyText(f.send("GET", "/v1/allocations?task_states=false", nil)); strings.Contains(reply, "stat /bin/no") || !strings.Contains(reply, id) {
		t.Errorf("without task states: %s", reply)
	}
}
