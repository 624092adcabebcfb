package hook

import (
	"iter"
	"reflect"
)

// Point is a hook point: a point in the life of an allocation or a task at which a hook may
// be called. The numbers are those of the hook protocol, in which they are sent.
type Point int32

// The hook points of allocations, and those of tasks from Prestart on. The comment of each interface,
// such as AllocPrerun or TaskPrestart, describes the hook point.
const (
	Prerun         Point = iota + 1 // method of AllocPrerun
	UpdateAlloc                     // method of AllocUpdate
	PreTaskRestart                  // method of AllocPreTaskRestart
	PreKill                         // method of AllocPreKill
	Postrun                         // method of AllocPostrun
	Destroy                         // method of AllocDestroy
	ShutdownAlloc                   // method of AllocShutdown
	Prestart                        // method of TaskPrestart
	Poststart                       // method of TaskPoststart
	Update                          // method of TaskUpdate
	PreKilling                      // method of TaskPreKilling
	Exited                          // method of TaskExited
	Stop                            // method of TaskStop
	Shutdown                        // method of TaskShutdown
)

// pointInfos has a row for each Point: its name for users, and the interface that a hook
// implements to be called there.
var pointInfos = [...]pointInfo{
	Prerun:         {"prerun", reflect.TypeFor[AllocPrerun]()},
	UpdateAlloc:    {"update_alloc", reflect.TypeFor[AllocUpdate]()},
	PreTaskRestart: {"pre_task_restart", reflect.TypeFor[AllocPreTaskRestart]()},
	PreKill:        {"pre_kill", reflect.TypeFor[AllocPreKill]()},
	Postrun:        {"postrun", reflect.TypeFor[AllocPostrun]()},
	Destroy:        {"destroy", reflect.TypeFor[AllocDestroy]()},
	ShutdownAlloc:  {"shutdown_alloc", reflect.TypeFor[AllocShutdown]()},
	Prestart:       {"prestart", reflect.TypeFor[TaskPrestart]()},
	Poststart:      {"poststart", reflect.TypeFor[TaskPoststart]()},
	Update:         {"update", reflect.TypeFor[TaskUpdate]()},
	PreKilling:     {"pre_killing", reflect.TypeFor[TaskPreKilling]()},
	Exited:         {"exited", reflect.TypeFor[TaskExited]()},
	Stop:           {"stop", reflect.TypeFor[TaskStop]()},
	Shutdown:       {"shutdown", reflect.TypeFor[TaskShutdown]()},
}

type pointInfo struct {
	name          string
	interfaceType reflect.Type
}

// isKnown reports whether p is a hook point of this version, and not one of a newer protocol.
func (p Point) isKnown() bool { return p > 0 && int(p) < len(pointInfos) }

// Interface returns the interface that a hook implements to be called at a known hook
// point. It has one method. For hosts only.
func (p Point) Interface() reflect.Type { return pointInfos[p].interfaceType }

func (p Point) String() string {
	if !p.isKnown() {
		return "unknown"
	}
	return pointInfos[p].name
}

// IsTask reports whether the hook point belongs to a task, and not to an allocation.
func (p Point) IsTask() bool { return p >= Prestart }

// AllPoints yields the hook points of this version, in order. For hosts only.
func AllPoints() iter.Seq[Point] {
	return func(yield func(Point) bool) {
		for p := Point(1); p.isKnown() && yield(p); p++ {
		}
	}
}

// PointsOf returns the hook points whose interfaces the type of h implements. For hosts only.
func PointsOf(h any) []Point {
	var points []Point
	for p := range AllPoints() {
		if reflect.TypeOf(h).Implements(p.Interface()) {
			points = append(points, p)
		}
	}
	return points
}
