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

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Modes of a check.
const (
	checkModeHealthiness = "healthiness"
	checkModeReadiness   = "readiness" // a readiness check has no effect on the health of a deployment

	onUpdateIgnore = "ignore"
)

// checkTarget is a check that is ready to run. Equal targets share one observer.
type checkTarget struct {
	id          string
	task        string // workload of the check: a task, or empty for the group
	service     string
	check       Check
	address     string
	configError string // error that prevents a run
}

func newCheckTarget(p addressResolver, s *Service, c Check) checkTarget {
	t := checkTarget{id: checkID(p.spec, s, &c), task: s.Task, service: s.Name, check: c}
	address, err := p.resolveCheck(s, &c)
	if err != nil {
		t.configError = err.Error()
	}
	t.address = address
	return t
}

func (t *checkTarget) newProbe(dial DialFunc) probe {
	if t.configError != "" {
		return failingProbe(fmt.Errorf("%s", t.configError))
	}
	return newProbe(&t.check, t.address, dial)
}

// checkID returns the id of a check within its allocation: the same check has the same id after
// each update and in each agent.
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
		fmt.Fprintf(h, "%d:", len(field)) // the length of each field separates the hashed fields
		_, _ = io.WriteString(h, field)   // a hash returns no error
	}
	return hex.EncodeToString(h.Sum(nil))
}

// CheckResult is the latest result of one check.
type CheckResult struct {
	api.AllocCheckStatus
	// RunStarted is the start of the last run, zero before the first run. The result was
	// recorded after that time.
	RunStarted time.Time
	// StatusSince is the time of the last change of the status.
	StatusSince time.Time
	// For is the task to whose health the check contributes; it may be empty.
	For string
}

// IsReadiness reports whether the result has no effect on the health of a deployment.
func (r CheckResult) IsReadiness() bool { return r.Mode == checkModeReadiness }

// checker runs the checks of one allocation.
type checker struct {
	allocID     string
	allocName   string
	dial        DialFunc
	resultStore CheckResultStore                               // store for results; nil if they are not stored
	restart     func(ctx context.Context, task, reason string) // may block
	logger      hclog.Logger

	wg sync.WaitGroup // wg counts the observers and the calls of restart

	// The mutex writeMu keeps the writes of results in order: unlike mu, it is held during
	// each write.
	writeMu sync.Mutex // locked before mu

	mu             sync.Mutex
	observersByID  map[string]*checkObserver  // observers by check id; nil before the checks are started
	resultsChanged chan struct{}              // channel, closed and replaced by each change of a result
	activeRestarts map[int]context.CancelFunc // active calls of restart, by number
	lastRestartID  int                        // number of the latest call of restart
}

// checkObserver is the state of one running check.
type checkObserver struct {
	target checkTarget
	cancel context.CancelFunc

	// Guarded by checker.mu.
	result             CheckResult
	storedStatus       api.AllocCheckStatus // the stored form of result, without its timestamp
	restartWatch       restartWatch
	restartTimer       *time.Timer // calls onRestartTimer when a restart can become due; nil if no restart is pending
	restartTimerNumber int         // identifies the current timer; an older timer has no effect
}

// setTargets replaces the checks. A running check that has not changed continues; a changed check keeps
// only its id. armed reports whether a workload is registered.
func (c *checker) setTargets(targets []checkTarget, armed func(task string) bool) {
	stored := c.storedResults()
	c.writeMu.Lock()
	defer c.writeMu.Unlock()

	c.mu.Lock()
	if c.observersByID == nil {
		c.observersByID = make(map[string]*checkObserver)
	}
	wanted := make(map[string]bool, len(targets))
	var newObservers []*checkObserver
	for _, t := range targets {
		if wanted[t.id] {
			continue // equal checks share one observer
		}
		wanted[t.id] = true
		old := c.observersByID[t.id]
		if old != nil && reflect.DeepEqual(old.target, t) {
			continue
		}
		o := c.newObserverLocked(t, old, stored[t.id])
		if armed(t.task) {
			o.restartWatch.arm(time.Now(), t.check.Restart)
		}
		newObservers = append(newObservers, o)
	}
	var removedIDs []string
	for id, o := range c.observersByID {
		if !wanted[id] {
			o.stopLocked()
			delete(c.observersByID, id)
			removedIDs = append(removedIDs, id)
		}
	}
	for id := range stored {
		if !wanted[id] && !slices.Contains(removedIDs, id) {
			removedIDs = append(removedIDs, id)
		}
	}
	for _, o := range newObservers {
		c.evaluateRestartLocked(o)
	}
	if len(newObservers) > 0 || len(removedIDs) > 0 {
		c.notifyChangedLocked()
	}
	c.mu.Unlock()

	for _, o := range newObservers {
		c.storeResult(o)
	}
	c.deleteResults(removedIDs)
}

// storedResults returns the results of an earlier agent if no check has started.
func (c *checker) storedResults() map[string]*api.AllocCheckStatus {
	c.mu.Lock()
	started := c.observersByID != nil
	c.mu.Unlock()
	if started || c.resultStore == nil {
		return nil
	}
	stored, err := c.resultStore.CheckResults(c.allocID)
	if err != nil {
		c.logger.Warn("results of checks not read", "error", err)
	}
	return stored
}

// newObserverLocked starts an observer that replaces old, which may be nil. It starts with the
// result of an earlier agent, if there is one.
func (c *checker) newObserverLocked(t checkTarget, old *checkObserver, stored *api.AllocCheckStatus) *checkObserver {
	if old != nil {
		old.stopLocked()
	}
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	o := &checkObserver{target: t, cancel: cancel}
	o.result = CheckResult{StatusSince: now, For: cmp.Or(t.task, t.check.For), AllocCheckStatus: api.AllocCheckStatus{
		ID:        t.id,
		Check:     t.check.Name,
		Group:     c.allocName,
		Mode:      checkModeHealthiness,
		Service:   t.service,
		Task:      t.task,
		Status:    model.CheckPending,
		Output:    pendingOutput,
		Timestamp: now.Unix(),
	}}
	if t.check.OnUpdate == onUpdateIgnore {
		o.result.Mode = checkModeReadiness
	}
	if stored != nil {
		o.result.AllocCheckStatus, o.storedStatus = *stored, withoutTimestamp(*stored)
	}
	c.observersByID[t.id] = o
	c.wg.Go(func() { c.runObserver(ctx, o) })
	return o
}

// runObserver runs the check after half an interval, and then an interval after the end of each run,
// until ctx ends.
func (c *checker) runObserver(ctx context.Context, o *checkObserver) {
	run := o.target.newProbe(c.dial)
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
		if !c.recordOutcome(o, began, found) {
			return
		}
		timer.Reset(o.target.check.Interval)
	}
}

// recordOutcome records the result of a run. It returns false when the observer was replaced or stopped.
func (c *checker) recordOutcome(o *checkObserver, began time.Time, found probeResult) bool {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()

	c.mu.Lock()
	if c.observersByID[o.target.id] != o {
		c.mu.Unlock()
		return false
	}
	now := time.Now()
	r := &o.result
	if r.Status != found.status || r.RunStarted.IsZero() {
		r.StatusSince = now
	}
	r.Status, r.StatusCode, r.Output = found.status, found.code, found.output
	r.RunStarted, r.Timestamp = began, now.Unix()
	c.evaluateRestartLocked(o)
	c.notifyChangedLocked()
	c.mu.Unlock()

	c.storeResult(o)
	return true
}

func (c *checker) notifyChangedLocked() {
	close(c.resultsChanged)
	c.resultsChanged = make(chan struct{})
}

// storeResult stores the result of an observer if it has changed, apart from its timestamp. The caller
// must hold writeMu.
func (c *checker) storeResult(o *checkObserver) {
	if c.resultStore == nil {
		return
	}
	c.mu.Lock()
	result := o.result.AllocCheckStatus
	news := withoutTimestamp(result) != o.storedStatus
	o.storedStatus = withoutTimestamp(result)
	c.mu.Unlock()
	if !news {
		return
	}
	if err := c.resultStore.PutCheckResult(c.allocID, &result); err != nil {
		c.logger.Warn("result of a check not stored", "check", result.Check, "error", err)
	}
}

func withoutTimestamp(s api.AllocCheckStatus) api.AllocCheckStatus {
	s.Timestamp = 0
	return s
}

func (c *checker) deleteResults(ids []string) {
	if c.resultStore == nil || len(ids) == 0 {
		return
	}
	if err := c.resultStore.DeleteCheckResults(c.allocID, ids); err != nil {
		c.logger.Warn("results of checks not removed", "error", err)
	}
}

// stop stops all checks, and blocks until all goroutines have returned. purge also deletes the
// results; otherwise they are kept for the next agent.
func (c *checker) stop(purge bool) {
	c.mu.Lock()
	var ids []string
	for id, o := range c.observersByID {
		o.stopLocked()
		ids = append(ids, id)
	}
	for _, cancel := range c.activeRestarts {
		cancel()
	}
	c.observersByID = nil
	c.notifyChangedLocked()
	c.mu.Unlock()
	c.wg.Wait()
	if purge {
		c.deleteResults(ids)
	}
}

func (o *checkObserver) stopLocked() {
	o.cancel()
	o.restartWatch.disarm()
	o.setTimerLocked(time.Time{}, nil)
}

// setTimerLocked replaces the timer; a zero time removes it.
func (o *checkObserver) setTimerLocked(at time.Time, look func(attempt int)) {
	o.restartTimerNumber++
	if o.restartTimer != nil {
		o.restartTimer.Stop()
		o.restartTimer = nil
	}
	if !at.IsZero() {
		attempt := o.restartTimerNumber
		o.restartTimer = time.AfterFunc(time.Until(at), func() { look(attempt) })
	}
}

// armRestarts enables check_restart for the checks of a workload.
func (c *checker) armRestarts(task string) {
	c.forEachObserverOfTask(task, func(o *checkObserver) {
		o.restartWatch.arm(time.Now(), o.target.check.Restart)
		c.evaluateRestartLocked(o)
	})
}

// disarmRestarts disables check_restart for the checks of a workload.
func (c *checker) disarmRestarts(task string) {
	c.forEachObserverOfTask(task, func(o *checkObserver) {
		o.restartWatch.disarm()
		c.evaluateRestartLocked(o)
	})
}

func (c *checker) forEachObserverOfTask(task string, f func(*checkObserver)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.observersByID {
		if o.target.task == task {
			f(o)
		}
	}
}

// evaluateRestartLocked updates the restartWatch of a check, and restarts the workload
// if a restart is due. It disarms the other checks of the workload until the workload
// is registered again, so that it is restarted only once.
func (c *checker) evaluateRestartLocked(o *checkObserver) {
	r := o.target.check.Restart
	unhealthy := o.result.Status == model.CheckFailure && !o.result.RunStarted.IsZero() && !o.result.RunStarted.Before(o.restartWatch.armedAt)
	due, next := o.restartWatch.evaluate(time.Now(), unhealthy, o.target.check.Interval, r.Limit)
	o.setTimerLocked(next, func(attempt int) { c.onRestartTimer(o, attempt) })
	if !due {
		return
	}
	for _, other := range c.observersByID {
		if other.target.task == o.target.task {
			other.restartWatch.disarm()
			other.setTimerLocked(time.Time{}, nil)
		}
	}
	task, reason := o.target.task, fmt.Sprintf("healthcheck: check %q unhealthy", o.target.check.Name)
	c.logger.Info("restarting for a check", "task", task, "check", o.target.check.Name, "output", firstLine(model.CheckFailureText(&o.result.AllocCheckStatus)))
	ctx, cancel := context.WithCancel(context.Background())
	c.lastRestartID++
	number := c.lastRestartID
	c.activeRestarts[number] = cancel
	c.wg.Go(func() {
		defer cancel()
		c.restart(ctx, task, reason)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.activeRestarts, number)
	})
}

func (c *checker) onRestartTimer(o *checkObserver, attempt int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.restartTimerNumber == attempt && c.observersByID[o.target.id] == o {
		c.evaluateRestartLocked(o)
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// snapshot returns all results, sorted by task, service and name, and a channel that
// closes when a result changes. started is false before setTargets and after stop.
func (c *checker) snapshot() (results []CheckResult, started bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	inOrder := func(x, y *checkObserver) int {
		a, b := x.result, y.result
		return slices.Compare([]string{a.Task, a.Service, a.Check, a.ID}, []string{b.Task, b.Service, b.Check, b.ID})
	}
	for _, o := range slices.SortedFunc(maps.Values(c.observersByID), inOrder) {
		results = append(results, o.result)
	}
	return results, c.observersByID != nil, c.resultsChanged
}
