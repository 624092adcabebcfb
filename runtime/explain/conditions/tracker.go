package conditions

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

const (
	// lookInterval is the time between two looks of Run.
	lookInterval = 10 * time.Second

	// minLookInterval is the minimum time between two looks caused by readers.
	minLookInterval = time.Second
)

// Tracker keeps an agent's conditions, and since when each exists. Its methods may be called concurrently.
type Tracker struct {
	readFacts func() Facts
	lookNow   chan struct{}

	mu     sync.Mutex // a look holds mu, so concurrent readers share one look
	report Report
}

// NewTracker returns a tracker that reads the facts with readFacts, in one goroutine at a time. readFacts should return within
// milliseconds.
func NewTracker(readFacts func() Facts) *Tracker {
	return &Tracker{readFacts: readFacts, lookNow: make(chan struct{}, 1)}
}

// Report returns the conditions. It looks at the facts if the last look is older than a second.
func (t *Tracker) Report() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	if age := time.Since(t.report.LookedAt); age < 0 || age >= minLookInterval {
		before := t.report.Conditions
		t.look()
		if !slices.EqualFunc(before, t.report.Conditions, func(a, b Condition) bool { return a.key() == b.key() }) {
			t.LookNow() // Run must not miss a condition seen by a reader
		}
	}
	return t.report
}

// look replaces the report. t.mu is held.
func (t *Tracker) look() {
	f := t.readFacts()
	since := make(map[key]time.Time, len(t.report.Conditions))
	for _, c := range t.report.Conditions {
		since[c.key()] = c.Since
	}
	found := Find(f)
	for i, c := range found {
		if c.Since.IsZero() {
			found[i].Since = f.Now
			if begin, existed := since[c.key()]; existed {
				found[i].Since = begin
			}
		}
	}
	t.report = Report{f.Now, found}
}

// LookNow makes Run look at the facts at once. It does not block.
func (t *Tracker) LookNow() {
	wait.Notify(t.lookNow)
}

// Run looks at the facts in intervals until ctx ends, and calls onLook after each look with the conditions begun and ended since
// its last call. onLook may block.
func (t *Tracker) Run(ctx context.Context, onLook func(begun, ended []Condition)) {
	interval := time.NewTicker(lookInterval)
	defer interval.Stop()
	reported := make(map[key]Condition)
	for {
		t.mu.Lock()
		t.look()
		current := t.report.Conditions
		t.mu.Unlock()
		var begun, ended []Condition
		exists := make(map[key]bool, len(current))
		for _, c := range current {
			exists[c.key()] = true
			if _, isReported := reported[c.key()]; !isReported {
				reported[c.key()] = c
				begun = append(begun, c)
			}
		}
		for k, c := range reported {
			if !exists[k] {
				delete(reported, k)
				ended = append(ended, c)
			}
		}
		onLook(begun, ended)
		select {
		case <-interval.C:
		case <-t.lookNow:
		case <-ctx.Done():
			return
		}
	}
}
