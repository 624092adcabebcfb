package top

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// sortKey is the value by which jobs, and the allocations of each job, are sorted.
type sortKey byte

const (
	byName     sortKey = 'N'
	byState    sortKey = 'S'
	byCPU      sortKey = 'C'
	byMemory   sortKey = 'M'
	byRestarts sortKey = 'R'
	byUptime   sortKey = 'U'
)

// sortNames are the names of the sort keys for people.
var sortNames = map[sortKey]string{
	byName: "name", byState: "state", byCPU: "cpu", byMemory: "memory", byRestarts: "restarts", byUptime: "uptime",
}

// rowID identifies the object of a row. The allocation is empty for a job, the task for an allocation.
type rowID struct {
	jobKey
	allocID, task string
}

// row is one row of the table: a job, an allocation of a job, or a task of an allocation.
type row struct {
	job       *job
	alloc     *alloc // nil for a job
	task      *task  // nil for a job or an allocation
	collapsed bool   // the rows below this one are left out
}

func (r row) id() rowID {
	id := rowID{jobKey: r.job.jobKey}
	if r.alloc != nil {
		id.allocID = r.alloc.ID
	}
	if r.task != nil {
		id.task = r.task.name
	}
	return id
}

func (r row) totals() totals {
	switch {
	case r.task != nil:
		return r.alloc.taskTotals(*r.task)
	case r.alloc != nil:
		return r.alloc.totals()
	}
	return r.job.totals()
}

// table selects and sorts the rows of a cluster. It formats no text.
type table struct {
	collapsed map[rowID]bool
	sort      sortKey
	reversed  bool
	filter    string // in lower case; rows match if they, a row above or a row below contain it
	all       bool   // show stopped jobs and replaced allocations, too
}

// rows returns all rows in their order.
func (t *table) rows(c *cluster) []row {
	var rows []row
	for _, j := range t.sortedJobs(c) {
		rows = t.appendJob(rows, j)
	}
	return rows
}

func (t *table) appendJob(rows []row, j *job) []row {
	start := len(rows)
	head := row{job: j, collapsed: t.collapsed[rowID{jobKey: j.jobKey}]}
	rows = append(rows, head)
	below := !t.matches(j.id, j.namespace, j.status)
	shown := 0
	for _, a := range t.sortedAllocs(j) {
		if a.hidden() && !t.all {
			continue
		}
		before := len(rows)
		if rows = t.appendAlloc(rows, j, a, below); len(rows) > before {
			shown++
		}
		if head.collapsed {
			rows = rows[:start+1]
		}
	}
	unmatched := below && shown == 0
	ended := shown == 0 && !t.all && (j.stopped || j.status == "" || j.status == "dead")
	if unmatched || ended {
		return rows[:start]
	}
	return rows
}

// appendAlloc appends the rows of an allocation. If mustMatch is set, because the job does not match the filter, it appends
// only matching rows.
func (t *table) appendAlloc(rows []row, j *job, a *alloc, mustMatch bool) []row {
	mustMatch = mustMatch && !t.matches(a.ID, a.shortName(), a.status())
	start := len(rows)
	head := row{job: j, alloc: a, collapsed: t.collapsed[rowID{j.jobKey, a.ID, ""}]}
	rows = append(rows, head)
	matching := false
	for i := range a.tasks {
		if mustMatch && !t.matches(a.tasks[i].name, a.tasks[i].status()) {
			continue
		}
		matching = true
		if !head.collapsed {
			rows = append(rows, row{job: j, alloc: a, task: &a.tasks[i]})
		}
	}
	if mustMatch && !matching {
		return rows[:start]
	}
	return rows
}

func (t *table) matches(texts ...string) bool {
	return t.filter == "" || slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), t.filter) })
}

// entry is a job or an allocation with the values by which it is sorted.
type entry[T any] struct {
	object T
	state  string
	totals totals
}

func (t *table) sortedJobs(c *cluster) []*job {
	jobs := slices.SortedFunc(maps.Values(c.jobs), func(a, b *job) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.namespace, b.namespace))
	})
	return sortEntries(t, jobs, func(j *job) entry[*job] { return entry[*job]{j, j.status, j.totals()} })
}

func (t *table) sortedAllocs(j *job) []*alloc {
	return sortEntries(t, j.allocs, func(a *alloc) entry[*alloc] { return entry[*alloc]{a, a.status(), a.totals()} })
}

// sortEntries sorts objects, which are sorted by name, by the sort key of the table.
func sortEntries[T any](t *table, objects []T, newEntry func(T) entry[T]) []T {
	if t.sort == byName {
		if t.reversed {
			objects = slices.Clone(objects)
			slices.Reverse(objects)
		}
		return objects
	}
	entries := make([]*entry[T], len(objects))
	for i, o := range objects {
		e := newEntry(o)
		entries[i] = &e
	}
	slices.SortStableFunc(entries, func(a, b *entry[T]) int {
		order := t.compare(a.state, b.state, a.totals, b.totals)
		if t.reversed {
			return -order
		}
		return order
	})
	sorted := make([]T, len(entries))
	for i, e := range entries {
		sorted[i] = e.object
	}
	return sorted
}

// compare sorts the largest values first, and states by name.
func (t *table) compare(stateA, stateB string, a, b totals) int {
	switch t.sort {
	case byState:
		return cmp.Compare(stateA, stateB)
	case byCPU:
		return cmp.Or(cmp.Compare(b.mhz, a.mhz), cmp.Compare(b.percent, a.percent))
	case byMemory:
		return cmp.Compare(b.memory, a.memory)
	case byRestarts:
		return cmp.Compare(b.restarts, a.restarts)
	case byUptime:
		if a.started.IsZero() || b.started.IsZero() { // running objects come first
			return cmp.Compare(b.running, a.running)
		}
		return a.started.Compare(b.started)
	}
	return 0
}
