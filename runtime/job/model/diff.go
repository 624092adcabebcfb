package model

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// Difference types.
const (
	DiffNone    = "None"
	DiffAdded   = "Added"
	DiffDeleted = "Deleted"
	DiffEdited  = "Edited"
)

// Diff compares two canonical jobs; either may be nil. All groups and tasks are listed, changed or not; a changed block also
// lists its unchanged attributes. Fields set by the agent are left out.
func Diff(old, new *api.Job) *api.JobDiff {
	from, to := newDiffedJobBlock(old), newDiffedJobBlock(new)
	diff := &api.JobDiff{
		Type: diffType(from, to), Fields: withoutUnchangedFields(diffFields(from, to)), Objects: diffObjects(from, to),
		TaskGroups: diffByName(groupsOrNil(old), groupsOrNil(new), func(g *api.TaskGroup) string { return pointer.Value(g.Name) }, diffGroup),
	}
	for _, job := range []*api.Job{old, new} {
		if job != nil {
			diff.ID = pointer.Value(job.ID)
		}
	}
	if diff.Type == DiffNone && slices.ContainsFunc(diff.TaskGroups, func(g *api.TaskGroupDiff) bool { return g.Type != DiffNone }) {
		diff.Type = DiffEdited
	}
	return diff
}

func groupsOrNil(job *api.Job) []*api.TaskGroup {
	if job == nil {
		return nil
	}
	return job.TaskGroups
}

func diffGroup(name string, old, new *api.TaskGroup) *api.TaskGroupDiff {
	from, to := newDiffedJobBlock(old), newDiffedJobBlock(new)
	diff := &api.TaskGroupDiff{
		Type: diffType(from, to), Name: name, Fields: withoutUnchangedFields(diffFields(from, to)), Objects: diffObjects(from, to),
		Tasks: diffByName(tasksOrNil(old), tasksOrNil(new), func(t *api.Task) string { return t.Name }, diffTask),
	}
	if diff.Type == DiffNone && slices.ContainsFunc(diff.Tasks, func(t *api.TaskDiff) bool { return t.Type != DiffNone }) {
		diff.Type = DiffEdited
	}
	return diff
}

func tasksOrNil(g *api.TaskGroup) []*api.Task {
	if g == nil {
		return nil
	}
	return g.Tasks
}

func diffTask(name string, old, new *api.Task) *api.TaskDiff {
	from, to := newDiffedJobBlock(old), newDiffedJobBlock(new)
	return &api.TaskDiff{Type: diffType(from, to), Name: name, Fields: withoutUnchangedFields(diffFields(from, to)), Objects: diffObjects(from, to)}
}

// diffByName compares the elements with equal names, sorted by name.
func diffByName[T, D any](old, new []*T, name func(*T) string, diff func(name string, old, new *T) D) []D {
	before, after := make(map[string]*T), make(map[string]*T)
	for _, v := range old {
		before[name(v)] = v
	}
	for _, v := range new {
		after[name(v)] = v
	}
	names := maps.Clone(before)
	maps.Copy(names, after)
	var diffs []D
	for _, n := range slices.Sorted(maps.Keys(names)) {
		diffs = append(diffs, diff(n, before[n], after[n]))
	}
	return diffs
}

func diffType(old, new *diffedJobBlock) string {
	switch {
	case old == nil && new == nil, old != nil && new != nil && old.fingerprint == new.fingerprint:
		return DiffNone
	case old == nil:
		return DiffAdded
	case new == nil:
		return DiffDeleted
	}
	return DiffEdited
}

// diffFields compares two parts' attributes; either part may be nil.
func diffFields(old, new *diffedJobBlock) []*api.FieldDiff {
	before, after := old.attributesOrNil(), new.attributesOrNil()
	keys := make(map[string]diffAttribute)
	maps.Copy(keys, before)
	maps.Copy(keys, after)
	var diffs []*api.FieldDiff
	for key, attribute := range keys {
		a, inOld := before[key]
		b, inNew := after[key]
		diff := &api.FieldDiff{Type: DiffEdited, Name: attribute.name, Old: a.text, New: b.text}
		switch {
		// An empty attribute does not differ from a missing block; an entry with empty text
		// differs from a missing entry.
		case a.text == b.text && (inOld == inNew || old == nil || new == nil):
			diff.Type = DiffNone
		case a.text == "" && !(inOld && b.text == ""):
			diff.Type = DiffAdded
		case b.text == "":
			diff.Type = DiffDeleted
		}
		diffs = append(diffs, diff)
	}
	slices.SortFunc(diffs, func(a, b *api.FieldDiff) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Old, b.Old), strings.Compare(a.New, b.New))
	})
	return diffs
}

func withoutUnchangedFields(diffs []*api.FieldDiff) []*api.FieldDiff {
	return slices.DeleteFunc(diffs, func(f *api.FieldDiff) bool { return f.Type == DiffNone })
}

// diffObjects compares two parts' blocks; either part may be nil. Equal blocks are not listed.
func diffObjects(old, new *diffedJobBlock) []*api.ObjectDiff {
	deleted, added := blocksWithoutEqual(old.innerBlocksOrNil(), new.innerBlocksOrNil()), blocksWithoutEqual(new.innerBlocksOrNil(), old.innerBlocksOrNil())
	type id struct{ name, key string }
	byID := make(map[id][]*diffedJobBlock)
	for _, p := range deleted {
		if p.keyAmongSameName != "" {
			byID[id{p.name, p.keyAmongSameName}] = append(byID[id{p.name, p.keyAmongSameName}], p)
		}
	}
	paired := make(map[*diffedJobBlock]bool)
	var diffs []*api.ObjectDiff
	for _, to := range added {
		var oldBlock *diffedJobBlock
		if same := byID[id{to.name, to.keyAmongSameName}]; len(same) > 0 {
			oldBlock, byID[id{to.name, to.keyAmongSameName}] = same[0], same[1:]
			paired[oldBlock] = true
		}
		diffs = append(diffs, diffObject(oldBlock, to))
	}
	for _, oldBlock := range deleted {
		if !paired[oldBlock] {
			diffs = append(diffs, diffObject(oldBlock, nil))
		}
	}
	slices.SortStableFunc(diffs, func(a, b *api.ObjectDiff) int { return strings.Compare(a.Name, b.Name) })
	return diffs
}

func diffObject(old, new *diffedJobBlock) *api.ObjectDiff {
	return &api.ObjectDiff{Type: diffType(old, new), Name: cmp.Or(old, new).name, Fields: diffFields(old, new), Objects: diffObjects(old, new)}
}

// blocksWithoutEqual returns the blocks without an equal block among the others. Each of the others matches one block only.
func blocksWithoutEqual(blocks, others []*diffedJobBlock) []*diffedJobBlock {
	left := make(map[string]int)
	for _, p := range others {
		left[p.name+p.fingerprint]++
	}
	var out []*diffedJobBlock
	for _, p := range blocks {
		if left[p.name+p.fingerprint]--; left[p.name+p.fingerprint] < 0 {
			out = append(out, p)
		}
	}
	return out
}

// AnnotateDiff adds to the difference between two jobs what a plan does with the allocations. updatesByGroup has the plan's
// numbers of changed allocations.
func AnnotateDiff(diff *api.JobDiff, old, new *api.Job, updatesByGroup map[string]*api.DesiredUpdates) {
	before, after := newTaskSpecIndex(old), newTaskSpecIndex(new)
	for _, g := range diff.TaskGroups {
		g.Updates = countByUpdateType(updatesByGroup[g.Name])
		for _, f := range g.Fields {
			if f.Name == "Count" {
				f.Annotations = groupCountAnnotations(f)
			}
		}
		for _, t := range g.Tasks {
			if note := taskAnnotation(g, t, before, after); note != "" {
				t.Annotations = []string{note}
			}
		}
	}
}

func countByUpdateType(u *api.DesiredUpdates) map[string]uint64 {
	if u == nil {
		return nil
	}
	counts := map[string]uint64{
		"ignore": u.Ignore, "create": u.Place, "destroy": u.Stop, "migrate": u.Migrate, "canary": u.Canary,
		"in-place update": u.InPlaceUpdate, "create/destroy update": u.DestructiveUpdate,
	}
	maps.DeleteFunc(counts, func(_ string, n uint64) bool { return n == 0 })
	return counts
}

func groupCountAnnotations(f *api.FieldDiff) []string {
	// Counts are decimal numbers without a sign, so the longer text is the larger number.
	grows := cmp.Or(cmp.Compare(len(f.Old), len(f.New)), strings.Compare(f.Old, f.New)) < 0
	switch {
	case f.Type == DiffNone:
		return nil
	case grows:
		return []string{"forces create"}
	}
	return []string{"forces destroy"}
}

// taskAnnotation returns the change's effect on the task. Nomad guesses it from the changed fields' names.
func taskAnnotation(g *api.TaskGroupDiff, t *api.TaskDiff, before, after taskSpecIndex) string {
	switch {
	case t.Type == DiffNone:
		return ""
	case g.Type == DiffAdded:
		return "forces create"
	case g.Type == DiffDeleted:
		return "forces destroy"
	case t.Type == DiffEdited && equalAsJSON(before.specOf(g.Name, t.Name), after.specOf(g.Name, t.Name)):
		return "forces in-place update"
	}
	return "forces create/destroy update"
}

// taskSpecIndex finds a job's tasks by group and task name.
type taskSpecIndex struct {
	job                *api.Job
	groupByName        map[string]*api.TaskGroup
	taskByGroupAndName map[[2]string]*api.Task
}

func newTaskSpecIndex(job *api.Job) taskSpecIndex {
	ids := taskSpecIndex{job, make(map[string]*api.TaskGroup), make(map[[2]string]*api.Task)}
	for _, g := range groupsOrNil(job) {
		ids.groupByName[pointer.Value(g.Name)] = g
		for _, t := range g.Tasks {
			ids.taskByGroupAndName[[2]string{pointer.Value(g.Name), t.Name}] = t
		}
	}
	return ids
}

func (t taskSpecIndex) specOf(group, task string) immutableTaskSpec {
	return immutableTaskSpecOf(t.job, t.groupByName[group], t.taskByGroupAndName[[2]string{group, task}])
}
