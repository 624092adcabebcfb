package hook

import "slices"

// Moment is a point in the life of an allocation or a task at which a hook may
// be called. The numbers are those of the wire.
type Moment int32

// The moments, in the order in which they come.
const (
	Prerun Moment = iota + 1
	UpdateAlloc
	PreTaskRestart
	PreKill
	Postrun
	Destroy
	ShutdownAlloc
	Prestart
	Poststart
	Update
	PreKilling
	Exited
	Stop
	Shutdown
)

// moments has a row for each Moment: what people call it, and whether a value
// takes part in it.
var moments = [...]struct {
	name   string
	partOf func(any) bool
}{
	Prerun:         {"prerun", is[AllocPrerun]},
	UpdateAlloc:    {"update_alloc", is[AllocUpdate]},
	PreTaskRestart: {"pre_task_restart", is[AllocPreTaskRestart]},
	PreKill:        {"pre_kill", is[AllocPreKill]},
	Postrun:        {"postrun", is[AllocPostrun]},
	Destroy:        {"destroy", is[AllocDestroy]},
	ShutdownAlloc:  {"shutdown_alloc", is[AllocShutdown]},
	Prestart:       {"prestart", is[TaskPrestart]},
	Poststart:      {"poststart", is[TaskPoststart]},
	Update:         {"update", is[TaskUpdate]},
	PreKilling:     {"pre_killing", is[TaskPreKilling]},
	Exited:         {"exited", is[TaskExited]},
	Stop:           {"stop", is[TaskStop]},
	Shutdown:       {"shutdown", is[TaskShutdown]},
}

func is[I any](v any) bool { _, ok := v.(I); return ok }

// known reports whether this version has the moment.
func (m Moment) known() bool { return m > 0 && int(m) < len(moments) }

func (m Moment) String() string {
	if !m.known() {
		return "unknown"
	}
	return moments[m].name
}

// OfTask reports whether the moment is one of a task, and not of its allocation.
func (m Moment) OfTask() bool { return m >= Prestart }

// CleansUp reports whether the moment is there to clean up: it is repeated until
// it succeeds, or there is nothing left that it could be called for.
func (m Moment) CleansUp() bool { return m == Postrun || m == Destroy || m == Stop }

// ParseMoment reads the name of a moment.
func ParseMoment(name string) (Moment, bool) {
	i := slices.IndexFunc(moments[1:], func(row struct {
		name   string
		partOf func(any) bool
	}) bool {
		return row.name == name
	})
	return Moment(i + 1), i >= 0
}

// Moments returns those that a hook takes part in: the ones whose interfaces it
// satisfies.
func Moments(h any) []Moment {
	var list []Moment
	for m := range Moment(len(moments)) {
		if m.known() && moments[m].partOf(h) {
			list = append(list, m)
		}
	}
	return list
}
