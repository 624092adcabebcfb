package services

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// The modes of a check: what its result is good for.
const (
	modeHealthiness = "healthiness"
	modeReadiness   = "readiness" // it never makes a deployment unhealthy

	onUpdateIgnore = "ignore"
)

// target is a check that is ready to run. Two that are equal need only one
// observer.
type target struct {
	id      string
	task    string // the workload; empty for the group
	service string
	check   Check
	address string
	fault   string // why it cannot run
}

func newTarget(p place, s *Service, c Check) target {
	t := target{id: checkID(p.spec, s, &c), task: s.Task, service: s.Name, check: c}
	address, err := p.checkAddress(s, &c)
	if err != nil {
		t.fault = err.Error()
	}
	t.address = address
	return t
}

func (t *target) probe(dial Dial) probe {
	if t.fault != "" {
		return alwaysFails(fmt.Errorf("%s", t.fault))
	}
	return newProbe(&t.check, t.address, dial)
}

// checkID names a check within its allocation: the same check has the same id
// at each update and in each agent.
func checkID(spec *Spec, s *Service, c *Check) string {
	port := c.Port
	if port == "" {
		port = s.Port
	}
	h := sha256.New()
	for _, field := range []string{
		spec.AllocID, spec.Group, s.Task, s.Name, c.Name, c.Type, port, c.OnUpdate, c.AddressMode,
		c.Interval.String(), c.Timeout.String(), c.Protocol, c.Path, c.Method, fmt.Sprint(c.TLSSkipVerify),
	} {
		fmt.Fprintf(h, "%d:", len(field)) // else two fields could be read as two others
		_, _ = io.WriteString(h, field)   // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Result is what is known of one check.
type Result struct {
	api.AllocCheckStatus
	// Began is when the last run began, zero before the first one: what it found
	// is not older.
	Began time.Time
	// Since is when the check has come to its status.
	Since time.Time
	// For is the task whose health the check tells, if it does.
	For string
}

// Readiness tells that the result has no say in the health of a deployment.
func (r Result) Readiness() bool { return r.Mode == modeReadiness }

// checker runs the checks of one allocation.
type checker struct {
	allocID   string
	allocName string
	dial      Dial
	results   Results                                        // nil keeps nothing
	restart   func(ctx context.Context, task, reason string) // may block
	logger    hclog.Logger

	wg sync.WaitGroup // one for each observer and each call of restart

	// writing keeps what is stored in the order in which it happened. Unlike mu
	// it is held across a write.
	writing sync.Mutex // taken before mu

	mu        sync.Mutex
	observers map[string]*observer       // by id of the check; nil unless started
	changed   chan struct{}              // closed and replaced by each change of a result
	restarts  map[int]context.CancelFunc // the calls of restart, by number
	restarted int                        // the number of the last one
}

// observer runs one check.
type observer struct {
	target target
	cancel context.CancelFunc

	// Guarded by checker.mu.
	result  Result
	stored  api.AllocCheckStatus // what was stored last, its time aside
	watch   restartWatch
	timer   *time.Timer // looks at watch; nil if there is no need to
	attempt int         // a timer that was set for an earlier one does nothing
}

// set makes the checks those that run. What runs already goes on as it is; of
// a check that is not the same any more only the id stays. armed tells which
// workloads are registered.
func (c *checker) set(targets []target, armed func(task string) bool) {
	stored := c.stored()
	c.writing.Lock()
	defer c.writing.Unlock()

	c.mu.Lock()
	if c.observers == nil {
		c.observers = make(map[string]*observer)
	}
	wanted := make(map[string]bool, len(targets))
	var fresh []*observer
	for _, t := range targets {
		if wanted[t.id] {
			continue // one is enough for two that are the same
		}
		wanted[t.id] = true
		old := c.observers[t.id]
		if old != nil && reflect.DeepEqual(old.target, t) {
			continue
		}
		o := c.newObserverLocked(t, old, stored[t.id])
		if armed(t.task) {
			o.watch.arm(time.Now(), t.check.Restart)
		}
		fresh = append(fresh, o)
	}
	var gone []string
	for id, o := range c.observers {
		if !wanted[id] {
			o.stopLocked()
			delete(c.observers, id)
			gone = append(gone, id)
		}
	}
	for id := range stored {
		if !wanted[id] && !slices.Contains(gone, id) {
			gone = append(gone, id)
		}
	}
	for _, o := range fresh {
		c.lookLocked(o)
	}
	if len(fresh) > 0 || len(gone) > 0 {
		c.announceLocked()
	}
	c.mu.Unlock()

	for _, o := range fresh {
		c.store(o)
	}
	c.forget(gone)
}

// stored returns what an earlier agent has found, as long as no check runs.
func (c *checker) stored() map[string]*api.AllocCheckStatus {
	c.mu.Lock()
	started := c.observers != nil
	c.mu.Unlock()
	if started || c.results == nil {
		return nil
	}
	stored, err := c.results.CheckResults(c.allocID)
	if err != nil {
		c.logger.Warn("results of checks not read", "error", err)
	}
	return stored
}

// newObserverLocked starts an observer in the place of old, which may be nil.
// Its result is that of an earlier agent, if there is one, until it has one of
// its own.
func (c *checker) newObserverLocked(t target, old *observer, stored *api.AllocCheckStatus) *observer {
	if old != nil {
		old.stopLocked()
	}
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	o := &observer{target: t, cancel: cancel}
	o.result = Result{Since: now, For: cmp.Or(t.task, t.check.For), AllocCheckStatus: api.AllocCheckStatus{
		ID:        t.id,
		Check:     t.check.Name,
		Group:     c.allocName,
		Mode:      modeHealthiness,
		Service:   t.service,
		Task:      t.task,
		Status:    StatusPending,
		Output:    outputPending,
		Timestamp: now.Unix(),
	}}
	if t.check.OnUpdate == onUpdateIgnore {
		o.result.Mode = modeReadiness
	}
	if stored != nil {
		o.result.AllocCheckStatus, o.stored = *stored, untimed(*stored)
	}
	c.observers[t.id] = o
	c.wg.Go(func() { c.observe(ctx, o) })
	return o
}

// observe runs the check after half an interval, and then an interval after
// each run, until ctx ends.
func (c *checker) observe(ctx context.Context, o *observer) {
	run := o.target.probe(c.dial)
	timer := time.NewTimer(o.target.check.Interval / 2)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		found := run(ctx)
		if !c.report(o, began, found) {
			return
		}
		timer.Reset(o.target.check.Interval)
	}
}

// report takes over what a run has found. It returns false when nobody wants to
// know any more.
func (c *checker) report(o *observer, began time.Time, found outcome) bool {
	c.writing.Lock()
	defer c.writing.Unlock()

	c.mu.Lock()
	if c.observers[o.target.id] != o {
		c.mu.Unlock()
		return false
	}
	now := time.Now()
	r := &o.result
	if r.Status != found.status || r.Began.IsZero() {
		r.Since = now
	}
	r.Status, r.StatusCode, r.Output = found.status, found.code, found.output
	r.Began, r.Timestamp = began, now.Unix()
	c.lookLocked(o)
	c.announceLocked()
	c.mu.Unlock()

	c.store(o)
	return true
}

func (c *checker) announceLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// store stores the result of an observer if it says something new. Only who
// holds writing may call it.
func (c *checker) store(o *observer) {
	if c.results == nil {
		return
	}
	c.mu.Lock()
	result := o.result.AllocCheckStatus
	news := untimed(result) != o.stored
	o.stored = untimed(result)
	c.mu.Unlock()
	if !news {
		return
	}
	if err := c.results.PutCheckResult(c.allocID, &result); err != nil {
		c.logger.Warn("result of a check not stored", "check", result.Check, "error", err)
	}
}

func untimed(s api.AllocCheckStatus) api.AllocCheckStatus {
	s.Timestamp = 0
	return s
}

func (c *checker) forget(ids []string) {
	if c.results == nil || len(ids) == 0 {
		return
	}
	if err := c.results.DeleteCheckResults(c.allocID, ids); err != nil {
		c.logger.Warn("results of checks not removed", "error", err)
	}
}

// stop ends all checks, and returns when nothing of them runs any more. purge
// forgets their results too; else they are kept for the next agent.
func (c *checker) stop(purge bool) {
	c.mu.Lock()
	var ids []string
	for id, o := range c.observers {
		o.stopLocked()
		ids = append(ids, id)
	}
	for _, cancel := range c.restarts {
		cancel()
	}
	c.observers = nil
	c.announceLocked()
	c.mu.Unlock()
	c.wg.Wait()
	if purge {
		c.forget(ids)
	}
}

func (o *observer) stopLocked() {
	o.cancel()
	o.watch.disarm()
	o.setTimerLocked(time.Time{}, nil)
}

// setTimerLocked replaces the timer; a zero time leaves none.
func (o *observer) setTimerLocked(at time.Time, look func(attempt int)) {
	o.attempt++
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if !at.IsZero() {
		attempt := o.attempt
		o.timer = time.AfterFunc(time.Until(at), func() { look(attempt) })
	}
}

// arm lets check_restart count for the checks of a workload, from now on.
func (c *checker) arm(task string) {
	c.eachOf(task, func(o *observer) {
		o.watch.arm(time.Now(), o.target.check.Restart)
		c.lookLocked(o)
	})
}

// disarm takes that back.
func (c *checker) disarm(task string) {
	c.eachOf(task, func(o *observer) {
		o.watch.disarm()
		c.lookLocked(o)
	})
}

func (c *checker) eachOf(task string, f func(*observer)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.observers {
		if o.target.task == task {
			f(o)
		}
	}
}

// lookLocked asks the watch of a check, and lets the workload be restarted if it
// is due. The other checks of the workload have no say any more until it is
// back: one restart is enough.
func (c *checker) lookLocked(o *observer) {
	r := o.target.check.Restart
	unhealthy := o.result.Status == StatusFailure && !o.result.Began.IsZero() && !o.result.Began.Before(o.watch.since)
	due, next := o.watch.look(time.Now(), unhealthy, o.target.check.Interval, r.Limit)
	o.setTimerLocked(next, func(attempt int) { c.lookAgain(o, attempt) })
	if !due {
		return
	}
	for _, other := range c.observers {
		if other.target.task == o.target.task {
			other.watch.disarm()
			other.setTimerLocked(time.Time{}, nil)
		}
	}
	task, reason := o.target.task, fmt.Sprintf("healthcheck: check %q unhealthy", o.target.check.Name)
	c.logger.Info("restarting for a check", "task", task, "check", o.target.check.Name, "output", firstLine(o.result.Output))
	ctx, cancel := context.WithCancel(context.Background())
	c.restarted++
	number := c.restarted
	c.restarts[number] = cancel
	c.wg.Go(func() {
		defer cancel()
		c.restart(ctx, task, reason)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.restarts, number)
	})
}

func (c *checker) lookAgain(o *observer, attempt int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.attempt == attempt && c.observers[o.target.id] == o {
		c.lookLocked(o)
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// snapshot returns all results, in the order of services, tasks and names, and a
// channel that closes when one of them is another. started is false before set
// and after stop.
func (c *checker) snapshot() (results []Result, started bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	inOrder := func(x, y *observer) int {
		a, b := x.result, y.result
		return slices.Compare([]string{a.Task, a.Service, a.Check, a.ID}, []string{b.Task, b.Service, b.Check, b.ID})
	}
	for _, o := range slices.SortedFunc(maps.Values(c.observers), inOrder) {
		results = append(results, o.result)
	}
	return results, c.observers != nil, c.changed
}
