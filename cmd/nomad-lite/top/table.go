package top

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// sortKey is a criterion for the order of jobs, and of the allocations of each job. Its value is the key that selects
// it.
type sortKey string

const (
	byName     sortKey = "N"
	byState    sortKey = "S"
	byCPU      sortKey = "C"
	byMemory   sortKey = "M"
	byRestarts sortKey = "R"
	byUptime   sortKey = "U"
)

// sortNames are the names of the sort keys for people.
var sortNames = map[sortKey]string{
	byName: "name", byState: "state", byCPU: "cpu", byMemory: "memory", byRestarts: "restarts", byUptime: "uptime",
}

// rowID identifies the object of a row. allocID is empty for a job, and task for a job or an allocation.
type rowID struct {
	jobKey
	allocID, taskName string
}

// row is one row of the table: a job, an allocation of a job, or a task of an allocation.
type row struct {
	job         *job
	alloc       *alloc // nil for a job
	task        *task  // nil for a job or an allocation
	isCollapsed bool   // the rows of the object's allocations or tasks are not shown
}

func (r row) id() rowID {
	id := rowID{jobKey: r.job.jobKey}
	if r.alloc != nil {
		id.allocID = r.alloc.ID
	}
	if r.task != nil {
		id.taskName = r.task.name
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

// table has the settings by which the rows of a cluster are selected and sorted. It formats no text.
type table struct {
	collapsedRows          map[rowID]bool // rows that the user has collapsed (true) or expanded (false)
	jobsStartCollapsed     bool           // jobs are collapsed unless the user expands them
	sortedBy               sortKey
	isReversed             bool
	filter                 string // selects rows that contain it in upper or lower case, and the rows above and below these
	showStoppedAndReplaced bool   // show stopped jobs and replaced allocations, too
}

func (t *table) selectAndSortRows(c *knownJobsAndAllocs) []row {
	var rows []row
	for _, j := range t.sortedJobs(c) {
		rows = t.appendJobRows(rows, j)
	}
	return rows
}

func (t *table) appendJobRows(rows []row, j *job) []row {
	start := len(rows)
	head := row{job: j, isCollapsed: t.isCollapsed(rowID{jobKey: j.jobKey})}
	rows = append(rows, head)
	below := !t.matchesFilter(j.id, j.namespace, head.state())
	shown := 0
	for _, a := range t.sortedAllocs(j) {
		if a.isHiddenUnlessShowAll() && !t.showStoppedAndReplaced {
			continue
		}
		before := len(rows)
		if rows = t.appendAllocRows(rows, j, a, below); len(rows) > before {
			shown++
		}
		if head.isCollapsed {
			rows = rows[:start+1]
		}
	}
	unmatched := below && shown == 0
	ended := shown == 0 && !t.showStoppedAndReplaced && (j.isStopped || j.status == "" || j.status == "dead")
	if unmatched || ended {
		return rows[:start]
	}
	return rows
}

// appendAllocRows appends the rows of an allocation and its tasks. onlyMatchingRows means that the job does not match
// the filter: then it appends only matching rows.
func (t *table) appendAllocRows(rows []row, j *job, a *alloc, onlyMatchingRows bool) []row {
	onlyMatchingRows = onlyMatchingRows && !t.matchesFilter(a.ID, a.shortName(), a.displayedStatus())
	start := len(rows)
	head := row{job: j, alloc: a, isCollapsed: t.isCollapsed(rowID{j.jobKey, a.ID, ""})}
	rows = append(rows, head)
	matching := false
	for i := range a.tasks {
		if onlyMatchingRows && !t.matchesFilter(a.tasks[i].name, a.tasks[i].displayedStatus()) {
			continue
		}
		matching = true
		if !head.isCollapsed {
			rows = append(rows, row{job: j, alloc: a, task: &a.tasks[i]})
		}
	}
	if onlyMatchingRows && !matching {
		return rows[:start]
	}
	return rows
}

// isCollapsed reports whether the rows below a job or an allocation are hidden.
func (t *table) isCollapsed(id rowID) bool {
	collapsed, isSet := t.collapsedRows[id]
	return collapsed || !isSet && t.jobsStartCollapsed && id.allocID == ""
}

func (t *table) matchesFilter(texts ...string) bool {
	filter := strings.ToLower(t.filter)
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), filter) })
}

// sortableObject is a job or an allocation with the values that the order depends on.
type sortableObject[T any] struct {
	object T
	state  string
	totals totals
}

func (t *table) sortedJobs(c *knownJobsAndAllocs) []*job {
	jobs := slices.SortedFunc(maps.Values(c.jobsByKey), func(a, b *job) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.namespace, b.namespace))
	})
	return sortObjectsByTableKey(t, jobs, func(j *job) sortableObject[*job] { return sortableObject[*job]{j, j.stateSortKey(), j.totals()} })
}

func (t *table) sortedAllocs(j *job) []*alloc {
	return sortObjectsByTableKey(t, j.allocs, func(a *alloc) sortableObject[*alloc] {
		return sortableObject[*alloc]{a, a.displayedStatus(), a.totals()}
	})
}

// sortObjectsByTableKey sorts objects by the sort key of the table. The objects must be sorted by name.
func sortObjectsByTableKey[T any](t *table, objects []T, newEntry func(T) sortableObject[T]) []T {
	if t.sortedBy == byName {
		if t.isReversed {
			objects = slices.Clone(objects)
			slices.Reverse(objects)
		}
		return objects
	}
	entries := make([]*sortableObject[T], len(objects))
	for i, o := range objects {
		e := newEntry(o)
		entries[i] = &e
	}
	slices.SortStableFunc(entries, func(a, b *sortableObject[T]) int {
		order := t.compareBySortKey(a.state, b.state, a.totals, b.totals)
		if t.isReversed {
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

// compareBySortKey compares by the sort key, such that the largest values come first, and states are in alphabetical
// order.
func (t *table) compareBySortKey(stateA, stateB string, a, b totals) int {
	switch t.sortedBy {
	case byState:
		return cmp.Compare(stateA, stateB)
	case byCPU:
		return cmp.Or(cmp.Compare(b.cpuMHz, a.cpuMHz), cmp.Compare(b.cpuPercent, a.cpuPercent))
	case byMemory:
		return cmp.Compare(b.memoryBytes, a.memoryBytes)
	case byRestarts:
		return cmp.Compare(b.restarts, a.restarts)
	case byUptime:
		if a.oldestStart.IsZero() || b.oldestStart.IsZero() { // running objects come first
			return cmp.Compare(b.runningTasks, a.runningTasks)
		}
		return a.oldestStart.Compare(b.oldestStart)
	}
	return 0
}
