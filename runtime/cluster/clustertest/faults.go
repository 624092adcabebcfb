package clustertest

import (
	"slices"
	"sync"
	"time"
)

// Always is the Times of a Fault that does not end by itself.
const Always = -1

// Fault changes what a server does with calls of a method. The fields are applied in their order; a zero field changes
// nothing.
type Fault struct {
	Method string  // empty for all methods
	Server *Server // nil for all servers
	// Match limits the fault to calls for which it returns true.
	Match func(Call) bool
	// Times is the number of calls that the fault applies to; zero means one call.
	Times int

	// Hold delays the call until the channel is closed. It is not executed before.
	Hold <-chan struct{}
	// Delay delays the call on the clock of the cluster. It is not executed before.
	Delay time.Duration
	// Cut closes the connection of the node at this moment.
	Cut CutPoint
	// Error is the answer. The call is not executed unless Execute is set.
	Error   string
	Execute bool
	// Edit changes the answer, which has strings, int64, uint64, float64, bool, []any, map[string]any and nil. It is not
	// called for an error.
	Edit func(response map[string]any)
	// HoldResponse delays the answer of an executed call until the channel is closed.
	HoldResponse <-chan struct{}
	// Raw is sent in place of the answer; then the stream is closed.
	Raw []byte
	// Repeat is how many times the answer is sent again.
	Repeat int
}

// CutPoint is a moment of a call.
type CutPoint int

// The moments of a call, in their order. Before CutBeforeResponse the call has been executed.
const (
	CutNever CutPoint = iota
	CutBeforeExecution
	CutBeforeResponse
	CutWithinResponse
	CutAfterResponse
)

// faultList has the faults in the order in which they were injected.
type faultList struct {
	mu     sync.Mutex
	faults []*Fault
}

// take returns the first fault for a call, nil if there is none.
func (l *faultList) take(s *Server, call Call) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.faults {
		if f.Method != "" && f.Method != call.Method || f.Server != nil && f.Server != s || f.Match != nil && !f.Match(call) {
			continue
		}
		if f.Times != Always {
			f.Times--
			if f.Times == 0 {
				l.faults = slices.Delete(l.faults, i, i+1)
			}
		}
		return f
	}
	return nil
}

// Inject adds a fault. The first fault that matches a call applies to it. remove removes the fault; it may be called
// twice, and does not affect calls that the fault applies to.
func (c *Cluster) Inject(f Fault) (remove func()) {
	if f.Times == 0 {
		f.Times = 1
	}
	l := &c.faults
	l.mu.Lock()
	defer l.mu.Unlock()
	injected := &f
	l.faults = append(l.faults, injected)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.faults = slices.DeleteFunc(l.faults, func(f *Fault) bool { return f == injected })
	}
}
