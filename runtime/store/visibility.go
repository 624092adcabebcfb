package store

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// A Visibility reports whether a reader sees an object in a public table. The namespace is "" for an object that is in none.
// object is the stored one, which must not be changed; it has an unexported type in some tables.
type Visibility func(t Table, namespace string, object any) bool

// Restrict returns the same state without the objects for which isVisible returns false. The local tables, and the indexes of the
// tables, are those of the whole state. isVisible is called concurrently.
func (s *Snapshot) Restrict(isVisible Visibility) *Snapshot {
	restricted := *s
	restricted.isVisible = isVisible
	return &restricted
}

// sees reports whether the Reader has an object.
func (r Reader) sees(t Table, row any) bool {
	if r.isVisible == nil || tableDefsByTable[t] == nil || !tableDefsByTable[t].hasTableIndex {
		return true
	}
	object := objectWithoutEvents(row)
	return r.isVisible(t, namespaceOf(object), object)
}

// namespaceOf returns an object's namespace, or "" if it is in none.
func namespaceOf(object any) string {
	switch o := object.(type) {
	case *api.Job:
		return pointer.Value(o.Namespace)
	case *jobSubmissionRow:
		return o.Namespace
	case *api.Evaluation:
		return o.Namespace
	case *api.Allocation:
		return o.Namespace
	case *api.Deployment:
		return o.Namespace
	case *api.ServiceRegistration:
		return o.Namespace
	case *api.Variable:
		return o.Namespace
	case *scalingEventsRow:
		return o.Namespace
	case *PeriodicLaunch:
		return o.Namespace
	case *state.HostVolume:
		return o.Volume.Namespace
	case *api.TaskGroupHostVolumeClaim:
		return o.Namespace
	}
	return ""
}

// Unrestricted returns the same state with all objects, for a computation whose result does not depend on the reader.
func (s *Snapshot) Unrestricted() *Snapshot {
	whole := *s
	whole.isVisible = nil
	return &whole
}
