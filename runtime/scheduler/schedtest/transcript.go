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

// Transcript records the changes of a store: one line for each changed object, with the time since the
// transcript started. Numbers in the order of appearance replace the ids.
type Transcript struct {
	start time.Time

	mu                 sync.Mutex // held while lines are written, because the test and simulated nodes change the store concurrently
	lines              strings.Builder
	lastLineBySubject  map[string]string
	sequenceNumberByID map[string]int
}

// NewTranscript starts to record the changes of a store.
func NewTranscript(s *FaultyStore) *Transcript {
	t := &Transcript{start: time.Now(), lastLineBySubject: make(map[string]string), sequenceNumberByID: make(map[string]int)}
	s.OnCommit = t.recordChanges
	return t
}

// String returns the recorded lines.
func (t *Transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines.String()
}

// AddTestLine adds a line with a text of the test.
func (t *Transcript) AddTestLine(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(&t.lines, "-- "+format+"\n", args...)
}

func (t *Transcript) recordChanges(state *store.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, job := range oldestFirst(state.Jobs(nil, store.AnyNamespace, ""), func(j *api.Job) uint64 { return *j.CreateIndex }) {
		stop, stable := "", ""
		if *job.Stop {
			stop = " stop"
		}
		if *job.Stable {
			stable = " stable"
		}
		t.addLineIfChanged("job "+*job.ID, "v%d %s%s%s", *job.Version, *job.Status, stop, stable)
	}
	for _, e := range oldestFirst(state.Evaluations(nil, ""), func(e *api.Evaluation) uint64 { return e.CreateIndex }) {
		t.addLineIfChanged("eval "+t.numberedIDText(e.ID), "%s %s%s", e.TriggeredBy, e.Status, t.evalText(e))
	}
	for _, d := range oldestFirst(state.Deployments(nil, ""), func(d *api.Deployment) uint64 { return d.CreateIndex }) {
		t.addLineIfChanged("deployment "+t.numberedIDText(d.ID), "v%d %s: %s%s", d.JobVersion, d.Status, d.StatusDescription, deploymentGroupsText(d))
	}
	for _, a := range oldestFirst(state.Allocations(nil, ""), func(a *api.Allocation) uint64 { return a.CreateIndex }) {
		t.addLineIfChanged("alloc "+a.Name+" "+t.numberedIDText(a.ID), "v%d %s %s%s", *a.Job.Version, a.DesiredStatus, a.ClientStatus, t.allocText(a, state.AllocationEnded(a.ID)))
	}
}

// oldestFirst sorts objects by their CreateIndex.
func oldestFirst[T any](objects []*T, created func(*T) uint64) []*T {
	slices.SortStableFunc(objects, func(a, b *T) int { return cmp.Compare(created(a), created(b)) })
	return objects
}

func (t *Transcript) numberedIDText(id string) string {
	if id == "" {
		return "-"
	}
	if t.sequenceNumberByID[id] == 0 {
		t.sequenceNumberByID[id] = len(t.sequenceNumberByID) + 1
	}
	return "#" + strconv.Itoa(t.sequenceNumberByID[id])
}

// addLineIfChanged adds a line about the object subject if its text differs from the last line about this object.
func (t *Transcript) addLineIfChanged(subject, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.lastLineBySubject[subject] == text {
		return
	}
	t.lastLineBySubject[subject] = text
	fmt.Fprintf(&t.lines, "%-7s %s: %s\n", "+"+strconv.FormatFloat(time.Since(t.start).Seconds(), 'f', -1, 64)+"s", subject, text)
}

func (t *Transcript) evalText(e *api.Evaluation) string {
	text := ""
	if !e.WaitUntil.IsZero() {
		text += fmt.Sprintf(", at +%vs", e.WaitUntil.Sub(t.start).Seconds())
	}
	if e.BlockedEval != "" {
		text += ", then " + t.numberedIDText(e.BlockedEval)
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

func (t *Transcript) allocText(a *api.Allocation, ended bool) string {
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
		text.WriteString(" after " + t.numberedIDText(a.PreviousAllocation))
	}
	if a.NextAllocation != "" {
		text.WriteString(" next " + t.numberedIDText(a.NextAllocation))
	}
	if a.FollowupEvalID != "" {
		text.WriteString(" follow-up " + t.numberedIDText(a.FollowupEvalID))
	}
	return text.String()
}
