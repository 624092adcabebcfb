package servers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
)

func TestQuery(t *testing.T) {
	type answer struct {
		asked, index uint64 // of the call, and of the answer
		isNew        bool
	}
	for _, test := range []struct {
		name    string
		answers []answer
	}{
		{"answers with a higher index are new", []answer{{0, 5, true}, {5, 6, true}, {6, 9, true}}},
		{"the first answer is new although its index is zero", []answer{{0, 0, true}, {1, 2, true}}},
		{"an answer at the end of the time is not new", []answer{{0, 5, true}, {5, 5, false}, {5, 6, true}}},
		{"a lower index is read from the leader", []answer{{0, 5, true}, {5, 3, false}, {0, 3, true}, {3, 4, true}}},
		{"a server that is behind makes no difference", []answer{{0, 5, true}, {5, 3, false}, {0, 5, true}, {5, 6, true}}},
		{"five unchanged answers restart the query", []answer{{0, 5, true}, {5, 5, false}, {5, 5, false}, {5, 5, false}, {5, 5, false}, {5, 5, false}, {0, 5, true}}},
		{"a new answer resets the count", []answer{{0, 5, true}, {5, 5, false}, {5, 5, false}, {5, 6, true}, {6, 6, false}, {6, 6, false}, {6, 6, false}, {6, 6, false}, {6, 7, true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var q Query
				for i, a := range test.answers {
					var o protocol.ReadOptions
					block := q.Next(&o)
					if o.MinQueryIndex != a.asked || o.AllowStale != (a.asked > 0) || block != o.MaxQueryTime || (block > 0) != (a.asked > 0) {
						t.Errorf("call %d: options %+v, block %v, want index %d", i, o, block, a.asked)
					}
					before := time.Now()
					if got := q.IsNew(t.Context(), a.index); got != a.isNew {
						t.Errorf("answer %d: new is %t", i, got)
					}
					if paused := time.Since(before) > 0; paused == a.isNew {
						t.Errorf("answer %d: a pause is %t after an immediate answer", i, paused)
					}
				}
			})
		})
	}
}

func TestQueryAfterFailedCall(t *testing.T) {
	var q Query
	q.IsNew(t.Context(), 7)
	q.Restart()
	var o protocol.ReadOptions
	if q.Next(&o); o.MinQueryIndex != 0 || o.AllowStale {
		t.Errorf("options %+v, want those of a first call", o)
	}
}

func TestQueryWithMaxStale(t *testing.T) {
	for _, test := range []struct {
		maxStale    time.Duration
		lastContact []time.Duration // in each answer from a server that is not the leader
		wantStale   []bool          // calls after the first one
	}{
		{0, nil, []bool{false, false, false}},
		{time.Minute, []time.Duration{time.Minute, time.Second}, []bool{true, true, true}},
		{time.Minute, []time.Duration{time.Hour, time.Second, time.Hour}, []bool{true, false, true, true, false}},
	} {
		q := Query{MaxStale: &test.maxStale, MaxBlock: 30 * time.Second}
		q.IsNew(t.Context(), 7)
		answers := test.lastContact
		for i, want := range test.wantStale {
			var o protocol.ReadOptions
			if block := q.Next(&o); o.AllowStale != want || block != 30*time.Second {
				t.Errorf("max stale %v, call %d: stale is %t, block %v", test.maxStale, i, o.AllowStale, block)
			}
			lastContact := 2 * time.Hour // the leader's answer is used nevertheless
			if o.AllowStale && len(answers) > 0 {
				lastContact, answers = answers[0], answers[1:]
			} else if o.AllowStale {
				lastContact = 0
			}
			if got, want := q.IsTooOld(lastContact), o.AllowStale && lastContact > test.maxStale; got != want {
				t.Errorf("max stale %v, call %d: too old is %t", test.maxStale, i, got)
			}
		}
	}
}
