package httpapi

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// In allocations and in lists of allocations, the events of a reschedule tracker have their delay, a field
// that the client's type lacks.
func TestRescheduleEventsHaveTheirDelay(t *testing.T) {
	at := func(seconds int) *api.RescheduleEvent {
		return &api.RescheduleEvent{RescheduleTime: int64(seconds) * int64(time.Second), PrevAllocID: "before", PrevNodeID: "n"}
	}
	policy := &api.ReschedulePolicy{Delay: new(5 * time.Second), DelayFunction: new("exponential"), MaxDelay: new(time.Minute), Unlimited: new(true)}
	// The first three allocations ran for a second, the fourth longer than the maximum delay.
	tracker := &api.RescheduleTracker{Events: []*api.RescheduleEvent{at(100), at(111), at(132), at(1000)}, LastReschedule: "ok"}
	group := &api.TaskGroup{Name: new("g"), ReschedulePolicy: policy}
	alloc := &api.Allocation{TaskGroup: "g", RescheduleTracker: tracker, Job: &api.Job{ID: new("j"), Type: new("service"), Version: new(uint64(0)), TaskGroups: []*api.TaskGroup{group}}}
	jobless := *alloc
	jobless.Job = nil

	for name, value := range map[string]any{
		"an allocation":           alloc,
		"a list":                  []allocStub{newAllocStub(alloc, true, true)},
		"an allocation in a list": []*api.Allocation{alloc},
		"an event":                map[string]any{"Allocation": eventAllocation{&jobless, rescheduleDelays(alloc)}},
	} {
		text, err := encodeNomadJSON(value)
		if err != nil {
			t.Fatal(err)
		}
		var decodedReply any
		if err := json.Unmarshal(text, &decodedReply); err != nil {
			t.Fatal(err)
		}
		if list, ok := decodedReply.([]any); ok {
			decodedReply = list[0]
		}
		shown := decodedReply.(map[string]any)
		if inner, ok := shown["Allocation"].(map[string]any); ok {
			shown = inner
		}
		var got []time.Duration
		for _, event := range shown["RescheduleTracker"].(map[string]any)["Events"].([]any) {
			got = append(got, time.Duration(event.(map[string]any)["Delay"].(float64)))
		}
		if want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 5 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("%s: delays %v, want %v", name, got, want)
		}
	}
}
