package schedtest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func mebibytesInBytes(mebibytes int) string { return strconv.Itoa(mebibytes << 20) }

// StoreTranscript records a store's changes: one line for each changed object, with the time since the transcript started.
// Numbers by first appearance replace the ids.
type StoreTranscript struct {
	start time.Time

	linesMu            sync.Mutex // held while lines are written, because the test and simulated nodes change the store concurrently
	lines              strings.Builder
	lastLineBySubject  map[string]string
	sequenceNumberByID map[string]int
}

// StartStoreTranscript starts to record a store's changes.
func StartStoreTranscript(s *FaultyStore) *StoreTranscript {
	t := &StoreTranscript{start: time.Now(), lastLineBySubject: make(map[string]string), sequenceNumberByID: make(map[string]int)}
	s.OnCommit = t.recordChanges
	return t
}

// String returns the recorded lines.
func (t *StoreTranscript) String() string {
	t.linesMu.Lock()
	defer t.linesMu.Unlock()
	return t.lines.String()
}

// AddTestComment adds a line with the test's text.
func (t *StoreTranscript) AddTestComment(format string, args ...any) {
	t.linesMu.Lock()
	defer t.linesMu.Unlock()
	fmt.Fprintf(&t.lines, "-- "+format+"\n", args...)
}

func (t *StoreTranscript) recordChanges(state *store.Snapshot) {
	t.linesMu.Lock()
	defer t.linesMu.Unlock()
	for _, job := range sortByCreateIndex(state.Jobs(nil, store.AnyNamespace, ""), func(j *api.Job) uint64 { return *j.CreateIndex }) {
		stop, stable := "", ""
		if *job.Stop {
			stop = " stop"
		}
		if *job.Stable {
			stable = " stable"
		}
		t.addLineIfChanged("job "+*job.ID, "v%d %s%s%s", *job.Version, *job.Status, stop, stable)
	}
	for _, e := range sortByCreateIndex(state.Evaluations(nil, ""), func(e *api.Evaluation) uint64 { return e.CreateIndex }) {
		t.addLineIfChanged("eval "+t.assignedNumberText(e.ID), "%s %s%s", e.TriggeredBy, e.Status, t.evalText(e))
	}
	for _, d := range sortByCreateIndex(state.Deployments(nil, ""), func(d *api.Deployment) uint64 { return d.CreateIndex }) {
		t.addLineIfChanged("deployment "+t.assignedNumberText(d.ID), "v%d %s: %s%s", d.JobVersion, d.Status, d.StatusDescription, deploymentGroupsText(d))
	}
	for _, a := range sortByCreateIndex(state.Allocations(nil, ""), func(a *api.Allocation) uint64 { return a.CreateIndex }) {
		t.addLineIfChanged("alloc "+a.Name+" "+t.assignedNumberText(a.ID), "v%d %s %s%s", *a.Job.Version, a.DesiredStatus, a.ClientStatus, t.allocText(a, state.AllocationEnded(a.ID)))
	}
}

// sortByCreateIndex sorts objects by their CreateIndex.
func sortByCreateIndex[T any](objects []*T, createIndex func(*T) uint64) []*T {
	slices.SortStableFunc(objects, func(a, b *T) int { return cmp.Compare(createIndex(a), createIndex(b)) })
	return objects
}

func (t *StoreTranscript) assignedNumberText(id string) string {
	if id == "" {
		return "-"
	}
	if t.sequenceNumberByID[id] == 0 {
		t.sequenceNumberByID[id] = len(t.sequenceNumberByID) + 1
	}
	return "#" + strconv.Itoa(t.sequenceNumberByID[id])
}

// addLineIfChanged adds a line about the object subject if its text differs from the last line about this object.
func (t *StoreTranscript) addLineIfChanged(subject, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.lastLineBySubject[subject] == text {
		return
	}
	t.lastLineBySubject[subject] = text
	fmt.Fprintf(&t.lines, "%-7s %s: %s\n", "+"+strconv.FormatFloat(time.Since(t.start).Seconds(), 'f', -1, 64)+"s", subject, text)
}

func (t *StoreTranscript) evalText(e *api.Evaluation) string {
	text := ""
	if !e.WaitUntil.IsZero() {
		text += fmt.Sprintf(", at +%vs", e.WaitUntil.Sub(t.start).Seconds())
	}
	if e.BlockedEval != "" {
		text += ", then " + t.assignedNumberText(e.BlockedEval)
	}
	for _, group := range slices.Sorted(maps.Keys(e.FailedTGAllocs)) {
		m := e.FailedTGAllocs[group]
		text += fmt.Sprintf(", %s lacks %d: %v%v", group, e.QueuedAllocations[group], m.ConstraintFiltered, m.DimensionExhausted)
	}
	return text
}

func deploymentGroupsText(d *api.Deployment) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(d.TaskGroups)) {
		s := d.TaskGroups[name]
		text += fmt.Sprintf(", %s placed %d healthy %d unhealthy %d of %d", name, s.PlacedAllocs, s.HealthyAllocs, s.UnhealthyAllocs, s.DesiredTotal)
		if s.DesiredCanaries > 0 {
			text += fmt.Sprintf(", canaries %d of %d promoted %v", len(s.PlacedCanaries), s.DesiredCanaries, s.Promoted)
		}
	}
	return text
}

func (t *StoreTranscript) allocText(a *api.Allocation, ended bool) string {
	var text strings.Builder
	if s := a.DeploymentStatus; s != nil {
		if s.Canary {
			text.WriteString(" canary")
		}
		switch {
		case s.Healthy == nil:
		case *s.Healthy:
			text.WriteString(" healthy")
		default:
			text.WriteString(" unhealthy")
		}
	}
	if ended {
		text.WriteString(" ended")
	}
	if a.DesiredDescription != "" {
		fmt.Fprintf(&text, " (%s)", a.DesiredDescription)
	}
	if a.PreviousAllocation != "" {
		text.WriteString(" after " + t.assignedNumberText(a.PreviousAllocation))
	}
	if a.NextAllocation != "" {
		text.WriteString(" next " + t.assignedNumberText(a.NextAllocation))
	}
	if a.FollowupEvalID != "" {
		text.WriteString(" follow-up " + t.assignedNumberText(a.FollowupEvalID))
	}
	return text.String()
}
