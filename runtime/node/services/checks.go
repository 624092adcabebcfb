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

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Check modes, as in Nomad's API.
const (
	checkModeHealthiness = "healthiness"
	checkModeReadiness   = "readiness" // a readiness check has no effect on deployment health

	onUpdateIgnore = "ignore"
)

// resolvedCheck is a check with resolved references and target address. It runs once for several equal checks.
type resolvedCheck struct {
	checkID     string
	task        string // the check's workload: a task, or empty for the group
	serviceName string
	check       Check
	hostPort    string
	configError string // error that prevents a run
}

func newResolvedCheck(resolver addressResolver, s *Service, c Check) resolvedCheck {
	t := resolvedCheck{checkID: hashCheckID(resolver.spec, s, &c), task: s.Task, serviceName: s.Name, check: c}
	if c.isScript() {
		return t
	}
	address, err := resolver.resolveCheckAddress(s, &c)
	if err != nil {
		t.configError = err.Error()
	}
	t.hostPort = address
	return t
}

func (r *resolvedCheck) newProbe(dial DialFunc, exec ExecFunc) probe {
	if r.configError != "" {
		return alwaysFailingProbe(fmt.Errorf("%s", r.configError))
	}
	return newProbe(&r.check, r.hostPort, dial, exec)
}

// hashCheckID hashes the allocation and the check's fields, so that an unchanged check keeps its id over updates and agent
// restarts.
func hashCheckID(spec *AllocServicesSpec, s *Service, c *Check) string {
	port := c.PortLabel
	if port == "" {
		port = s.PortLabel
	}
	h := sha256.New()
	fields := []string{
		spec.AllocID, spec.Group, s.Task, s.Name, c.Name, c.Type, port, c.OnUpdate, c.AddressMode,
		c.Interval.String(), c.Timeout.String(), c.Protocol, c.Path, c.Method, fmt.Sprint(c.TLSSkipVerify),
	}
	switch strings.ToLower(c.Type) {
	case "script":
		fields = append(append(fields, c.ScriptTask, c.Command), c.Args...)
	case "grpc":
		fields = append(fields, c.GRPCService, fmt.Sprint(c.GRPCUseTLS))
	}
	for _, field := range fields {
		fmt.Fprintf(h, "%d:", len(field)) // each field's length separates the hashed fields
		_, _ = io.WriteString(h, field)   // a hash returns no error
	}
	return hex.EncodeToString(h.Sum(nil))
}

// checkRunner runs the checks of one allocation regularly, keeps their latest results, and restarts workloads.
type checkRunner struct {
	allocID         string
	allocName       string
	dial            DialFunc
	exec            ExecFunc
	secrets         *redact.Values
	resultStore     CheckResultStore                               // nil if results are not stored
	restartWorkload func(ctx context.Context, task, reason string) // restarts a workload; blocks until it is restarted
	logger          hclog.Logger

	checksAndRestartsWG sync.WaitGroup // counts the goroutines for running checks and calls to restartWorkload

	// The mutex resultStoreMu keeps the writes to resultStore in order: unlike mu, it is held during
	// each write.
	resultStoreMu sync.Mutex // locked before mu

	mu                    sync.Mutex
	runningCheckByID      map[string]*runningCheck   // check id -> running check; nil before the first startAndStopChecksToMatch, and after stopAndWait
	resultsChanged        chan struct{}              // channel, closed and replaced at each result change
	statusesChanged       chan struct{}              // channel, closed and replaced when a result changes in more than its times
	cancelByRestartNumber map[int]context.CancelFunc // call number -> cancel function for an active restartWorkload call
	lastRestartNumber     int                        // number of the latest restartWorkload call
}

// runningCheck is a running check: its goroutine, latest result and pending restart.
type runningCheck struct {
	target resolvedCheck
	cancel context.CancelFunc

	// Guarded by checkRunner.mu.
	result             core.CheckResult
	consecutive        int                  // number of latest consecutive runs with latestOutcome
	latestOutcome      string               // status of the latest run; the result's status follows after enough runs
	lastStoredStatus   api.AllocCheckStatus // latest result written to resultStore, without its timestamp
	restartWatch       restartWatch
	restartTimer       *time.Timer // calls onRestartTimer when a restart can become due; nil if no restart is pending
	restartTimerNumber int         // identifies the current timer; an older timer has no effect
}

// startAndStopChecksToMatch starts, replaces and stops checks, so that exactly the targets run. An unchanged check continues.
// check_restart applies to a check only if isWorkloadRegistered returns true for its workload.
func (c *checkRunner) startAndStopChecksToMatch(targets []resolvedCheck, isWorkloadRegistered func(task string) bool) {
	stored := c.earlierAgentResultByCheckID()
	c.resultStoreMu.Lock()
	defer c.resultStoreMu.Unlock()

	c.mu.Lock()
	if c.runningCheckByID == nil {
		c.runningCheckByID = make(map[string]*runningCheck)
	}
	wanted := make(map[string]bool, len(targets))
	var newObservers []*runningCheck
	for _, t := range targets {
		if wanted[t.checkID] {
			continue // equal checks run once
		}
		wanted[t.checkID] = true
		old := c.runningCheckByID[t.checkID]
		if old != nil && reflect.DeepEqual(old.target, t) {
			continue
		}
		o := c.replaceCheckLocked(t, old, stored[t.checkID])
		if isWorkloadRegistered(t.task) {
			o.restartWatch.arm(time.Now(), t.check.Restart)
		}
		newObservers = append(newObservers, o)
	}
	var removedIDs []string
	for id, o := range c.runningCheckByID {
		if !wanted[id] {
			o.stopLocked()
			delete(c.runningCheckByID, id)
			removedIDs = append(removedIDs, id)
		}
	}
	for id := range stored {
		if !wanted[id] && !slices.Contains(removedIDs, id) {
			removedIDs = append(removedIDs, id)
		}
	}
	for _, o := range newObservers {
		c.evaluateAndRestartLocked(o)
	}
	if len(newObservers) > 0 || len(removedIDs) > 0 {
		c.notifyResultsChangedLocked(true)
	}
	c.mu.Unlock()

	for _, o := range newObservers {
		c.storeResultIfChanged(o)
	}
	c.deleteStoredResults(removedIDs)
}

// earlierAgentResultByCheckID returns check id -> an earlier agent's result, or nil after the first startAndStopChecksToMatch.
func (c *checkRunner) earlierAgentResultByCheckID() map[string]*api.AllocCheckStatus {
	c.mu.Lock()
	started := c.runningCheckByID != nil
	c.mu.Unlock()
	if started || c.resultStore == nil {
		return nil
	}
	stored, err := c.resultStore.StoredResultByCheckID(c.allocID)
	if err != nil {
		c.logger.Warn("results of checks not read", "error", err)
	}
	return stored
}

// replaceCheckLocked starts a check. It stops old, the running check with the same id, which may be nil. The first result is
// storedResult, from an earlier agent, or pending if storedResult is nil.
func (c *checkRunner) replaceCheckLocked(t resolvedCheck, old *runningCheck, storedResult *api.AllocCheckStatus) *runningCheck {
	if old != nil {
		old.stopLocked()
	}
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	o := &runningCheck{target: t, cancel: cancel}
	o.result = core.CheckResult{StatusSince: now, AffectsHealthOfTask: cmp.Or(t.task, t.check.AffectsHealthOfTask), AllocCheckStatus: api.AllocCheckStatus{
		ID:        t.checkID,
		Check:     t.check.Name,
		Group:     c.allocName,
		Mode:      checkModeHealthiness,
		Service:   t.serviceName,
		Task:      t.task,
		Status:    model.CheckPending,
		Output:    pendingOutput,
		Timestamp: now.Unix(),
	}}
	if t.check.OnUpdate == onUpdateIgnore {
		o.result.Mode = checkModeReadiness
	}
	if storedResult != nil {
		o.result.AllocCheckStatus, o.lastStoredStatus = *storedResult, withoutTimestamp(*storedResult)
	}
	c.runningCheckByID[t.checkID] = o
	c.checksAndRestartsWG.Go(func() { c.runCheckRegularly(ctx, o) })
	return o
}

// runCheckRegularly runs a check after half an interval, and again one interval after each run's end, until ctx ends.
func (c *checkRunner) runCheckRegularly(ctx context.Context, o *runningCheck) {
	run := o.target.newProbe(c.dial, c.exec)
	timer := time.NewTimer(o.target.check.Interval / 2)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		runStart := time.Now()
		outcome := run(ctx)
		if !c.recordOutcomeIfCurrent(o, runStart, outcome) {
			return
		}
		timer.Reset(o.target.check.Interval)
	}
}

// recordOutcomeIfCurrent records a run's result. isCurrent is false if the check was replaced or stopped during the run.
func (c *checkRunner) recordOutcomeIfCurrent(o *runningCheck, runStart time.Time, outcome probeResult) (isCurrent bool) {
	c.resultStoreMu.Lock()
	defer c.resultStoreMu.Unlock()

	c.mu.Lock()
	if c.runningCheckByID[o.target.checkID] != o {
		c.mu.Unlock()
		return false
	}
	now := time.Now()
	r := &o.result
	before := withoutTimestamp(r.AllocCheckStatus)
	status := o.statusAfterLocked(outcome.status)
	if r.Status != status || r.LastRunStartedAt.IsZero() {
		r.StatusSince = now
	}
	r.Status, r.StatusCode, r.Output = status, outcome.httpStatusCode, c.secrets.Text(outcome.output)
	r.LastRunStartedAt, r.Timestamp = runStart, now.Unix()
	c.evaluateAndRestartLocked(o)
	c.notifyResultsChangedLocked(withoutTimestamp(r.AllocCheckStatus) != before)
	c.mu.Unlock()

	c.storeResultIfChanged(o)
	return true
}

// statusAfterLocked returns a check's status after a run with this outcome: the outcome, if enough consecutive runs had it, and
// otherwise the current status.
func (r *runningCheck) statusAfterLocked(outcome string) string {
	if outcome != r.latestOutcome {
		r.latestOutcome, r.consecutive = outcome, 0
	}
	r.consecutive++
	needed := r.target.check.SuccessesToPass
	if outcome == model.CheckFailure {
		needed = r.target.check.FailuresToFail
	}
	if r.consecutive < needed {
		return r.result.Status
	}
	return outcome
}

// notifyResultsChangedLocked closes resultsChanged, and statusesChanged too unless only times have changed.
func (c *checkRunner) notifyResultsChangedLocked(statuses bool) {
	close(c.resultsChanged)
	c.resultsChanged = make(chan struct{})
	if statuses {
		close(c.statusesChanged)
		c.statusesChanged = make(chan struct{})
	}
}

// storeResultIfChanged writes a check's latest result to resultStore, unless only its timestamp has changed. The caller must hold
// resultStoreMu.
func (c *checkRunner) storeResultIfChanged(o *runningCheck) {
	if c.resultStore == nil {
		return
	}
	c.mu.Lock()
	result := o.result.AllocCheckStatus
	news := withoutTimestamp(result) != o.lastStoredStatus
	o.lastStoredStatus = withoutTimestamp(result)
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

func (c *checkRunner) deleteStoredResults(checkIDs []string) {
	if c.resultStore == nil || len(checkIDs) == 0 {
		return
	}
	if err := c.resultStore.DeleteCheckResults(c.allocID, checkIDs); err != nil {
		c.logger.Warn("results of checks not removed", "error", err)
	}
}

// stopAndWait stops all checks, and blocks until all goroutines have returned. With deleteResults it deletes the stored
// results; otherwise the next agent uses them.
func (c *checkRunner) stopAndWait(deleteResults bool) {
	c.mu.Lock()
	var ids []string
	for id, o := range c.runningCheckByID {
		o.stopLocked()
		ids = append(ids, id)
	}
	for _, cancel := range c.cancelByRestartNumber {
		cancel()
	}
	c.runningCheckByID = nil
	c.notifyResultsChangedLocked(true)
	c.mu.Unlock()
	c.checksAndRestartsWG.Wait()
	if deleteResults {
		c.deleteStoredResults(ids)
	}
}

func (r *runningCheck) stopLocked() {
	r.cancel()
	r.restartWatch.disarm()
	r.replaceRestartTimerLocked(time.Time{}, nil)
}

// replaceRestartTimerLocked replaces the restart timer. The new timer calls onTimer at dueAt. A zero dueAt only stops the timer.
func (r *runningCheck) replaceRestartTimerLocked(dueAt time.Time, onTimer func(timerNumber int)) {
	r.restartTimerNumber++
	if r.restartTimer != nil {
		r.restartTimer.Stop()
		r.restartTimer = nil
	}
	if !dueAt.IsZero() {
		attempt := r.restartTimerNumber
		r.restartTimer = time.AfterFunc(time.Until(dueAt), func() { onTimer(attempt) })
	}
}

// armRestarts starts a new check_restart grace period for a workload's checks.
func (c *checkRunner) armRestarts(taskOrGroup string) {
	c.forEachCheckOfWorkload(taskOrGroup, func(o *runningCheck) {
		o.restartWatch.arm(time.Now(), o.target.check.Restart)
		c.evaluateAndRestartLocked(o)
	})
}

// disarmRestarts prevents restarts by a workload's checks until armRestarts is called.
func (c *checkRunner) disarmRestarts(task string) {
	c.forEachCheckOfWorkload(task, func(o *runningCheck) {
		o.restartWatch.disarm()
		c.evaluateAndRestartLocked(o)
	})
}

func (c *checkRunner) forEachCheckOfWorkload(task string, f func(*runningCheck)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.runningCheckByID {
		if o.target.task == task {
			f(o)
		}
	}
}

// evaluateAndRestartLocked updates a check's restartWatch after a new result or a timer, and restarts the workload if a restart
// is due. It then disarms all the workload's checks until the workload is registered again, so that the workload is restarted
// only once.
func (c *checkRunner) evaluateAndRestartLocked(o *runningCheck) {
	r := o.target.check.Restart
	unhealthy := o.result.Status == model.CheckFailure && !o.result.LastRunStartedAt.IsZero() && !o.result.LastRunStartedAt.Before(o.restartWatch.armedAt)
	due, next := o.restartWatch.updateRestartDueTime(time.Now(), unhealthy, o.target.check.Interval, r.Limit)
	o.replaceRestartTimerLocked(next, func(attempt int) { c.onRestartTimer(o, attempt) })
	if !due {
		return
	}
	for _, other := range c.runningCheckByID {
		if other.target.task == o.target.task {
			other.restartWatch.disarm()
			other.replaceRestartTimerLocked(time.Time{}, nil)
		}
	}
	task, reason := o.target.task, fmt.Sprintf("healthcheck: check %q unhealthy", o.target.check.Name)
	c.logger.Info("restarting for a check", "task", task, "check", o.target.check.Name, "output", firstLine(model.CheckFailureText(&o.result.AllocCheckStatus)))
	ctx, cancel := context.WithCancel(context.Background())
	c.lastRestartNumber++
	number := c.lastRestartNumber
	c.cancelByRestartNumber[number] = cancel
	c.checksAndRestartsWG.Go(func() {
		defer cancel()
		c.restartWorkload(ctx, task, reason)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cancelByRestartNumber, number)
	})
}

func (c *checkRunner) onRestartTimer(o *runningCheck, timerNumber int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.restartTimerNumber == timerNumber && c.runningCheckByID[o.target.checkID] == o {
		c.evaluateAndRestartLocked(o)
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// resultsSnapshot returns all checks' results, sorted by task, service and name, and a channel that is closed when a result
// changes. started is false before the first startAndStopChecksToMatch and after stopAndWait.
func (c *checkRunner) resultsSnapshot() (results []core.CheckResult, started bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	inOrder := func(x, y *runningCheck) int {
		a, b := x.result, y.result
		return slices.Compare([]string{a.Task, a.Service, a.Check, a.ID}, []string{b.Task, b.Service, b.Check, b.ID})
	}
	for _, o := range slices.SortedFunc(maps.Values(c.runningCheckByID), inOrder) {
		results = append(results, o.result)
	}
	return results, c.runningCheckByID != nil, c.resultsChanged
}
