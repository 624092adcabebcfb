package record

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/racedetector"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/core/tasksteps"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// TestReachableRecords visits all records that one task can have, with each crash, each failed put and each driver answer, and
// the disk after it. The search tracks the existing processes apart from the record, and checks promises about these processes.
func TestReachableRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 seconds of processor time: go test without -short, and CI, run it")
	}
	for _, policy := range []restart.Policy{
		{Attempts: 1, Interval: time.Hour, Mode: restart.ModeFail, RestartsOnSuccess: true},
		{Attempts: 1, Interval: time.Hour, Mode: restart.ModeFail},
		{Attempts: 1, Interval: time.Hour, Delay: time.Minute, Mode: restart.ModeDelay},
	} {
		t.Run(fmt.Sprintf("delay %v, restarts on success %v", policy.Delay, policy.RestartsOnSuccess), func(t *testing.T) {
			if racedetector.Enabled && !policy.RestartsOnSuccess {
				t.Skip("takes a minute of processor time, in one goroutine: CI runs it without the race detector, too")
			}
			t.Parallel()
			s := &search{policy: policy, seen: map[string]int32{}}
			s.visitAll()
			t.Logf("%d states", len(s.seen))
			for _, broken := range s.broken {
				t.Error(broken)
			}
		})
	}
}

var searchTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// truth is a start's real history.
type truth struct {
	called     bool // StartTask was called
	executed   bool // there was a process
	destroyed  bool // the driver has destroyed the process
	exitStored bool // the exit was on the disk
	decided    bool // a decision about the exit was on the disk
	requested  bool // a restart was requested, which is not a failure, and the request was on the disk
}

const idCount = 4

// situation is one search state.
type situation struct {
	step      tasksteps.Step
	record    Record
	disk      Record   // record for the next agent; its field killed is not on the disk
	isOnDisk  bool     // there is a record on the disk
	unstored  []Record // disk after each pending put, the oldest first
	starts    [idCount]truth
	process   int  // index of the start with the runner's process; -1 if none
	undecided bool // the driver has not answered yet whether the start was executed
	failed    bool // the decision is about a failed start
	completed bool // Completed was on the disk
}

type search struct {
	policy  restart.Policy
	seen    map[string]int32 // queue index for the previous situation, by key; -1 for the first
	queue   []situation      // all situations, in the order in which they were found; the first ones are visited
	visited int
	broken  []string
}

func (s *search) visitAll() {
	s.add(situation{step: tasksteps.First(false), record: canonical(New(searchTime)), process: -1})
	for s.visited < len(s.queue) && len(s.broken) == 0 {
		s.visited++
		s.visit(s.queue[s.visited-1])
	}
}

func (s *search) add(n situation) {
	s.forgetUnusedStarts(&n)
	n.renameStarts()
	key := n.key()
	if _, isSeen := s.seen[key]; !isSeen {
		s.seen[key] = int32(s.visited - 1)
		s.queue = append(s.queue, n)
		s.check(n)
	}
}

func (s *search) report(n situation, format string, args ...any) {
	path := n.String()
	for i := int32(s.visited - 1); i >= 0; i = s.seen[s.queue[i].key()] {
		path = s.queue[i].String() + "\n" + path
	}
	s.broken = append(s.broken, fmt.Sprintf(format, args...)+"\n"+path)
}

// canonical removes the fields that change no decision.
func canonical(r Record) Record {
	f := &r.fields
	f.LastEnd, f.LastStart, f.HookStateByName = nil, time.Time{}, nil
	f.RestartState.EndsInWindow = min(f.RestartState.EndsInWindow, 2)
	f.RestartState.WindowStart = searchTime
	if f.UnhandledExit != nil {
		e := *f.UnhandledExit
		f.UnhandledExit = &restart.RunEnd{StatusUnknown: e.StatusUnknown, Success: e.Success, RestartRequested: e.RestartRequested, RestartCountsAsFailure: e.RestartCountsAsFailure}
	}
	finished := r.status.FinishedAt
	r.status = &api.TaskState{State: r.status.State, Failed: r.status.Failed, FinishedAt: finished}
	return r
}

// appendBits appends one byte with the bits.
func appendBits(key []byte, bits ...bool) []byte {
	b := byte(0)
	for i, bit := range bits {
		if bit {
			b |= 1 << i
		}
	}
	return append(key, b)
}

// appendKey appends the fields that distinguish a record.
func (r Record) appendKey(key []byte) []byte {
	f := r.fields
	key = append(append(append(key, r.status.State[0]), f.StartID...), '-')
	key = append(append(key, f.NextStartID...), '-')
	key = appendBits(key, r.status.Failed, r.killed, f.Handle != nil, f.HandleUnrecoverable, f.RunComplete, f.KillRequested, f.RestartState.Delay > 0, r.status.FinishedAt.IsZero())
	if e := f.UnhandledExit; e != nil {
		key = append(appendBits(key, e.StatusUnknown, e.Success, e.RestartRequested, e.RestartCountsAsFailure), 'e')
	}
	for d := f.FirstPendingDestroy; d != nil; d = d.Next {
		key = append(appendBits(append(key, d.StartID...), d.Handle != nil), 'd')
	}
	if f.RestartRequest != nil {
		key = append(appendBits(key, f.RestartRequest.CountsAsFailure), 'r')
	}
	return append(key, byte(f.RestartState.EndsInWindow))
}

func (n situation) key() string {
	key := appendBits(make([]byte, 0, 128), n.undecided, n.failed, n.completed, n.isOnDisk)
	key = append(key, byte(n.step), byte(n.process+1))
	for _, t := range n.starts {
		key = appendBits(key, t.called, t.executed, t.destroyed, t.exitStored, t.decided, t.requested)
	}
	key = n.record.appendKey(key)
	key = n.diskOrNew().appendKey(append(key, '|'))
	for _, r := range n.unstored {
		key = r.appendKey(append(key, '|'))
	}
	return string(key)
}

// String describes the situation in a failure.
func (n situation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: process %d, undecided %v, start failed %v, starts %+v", n.step, n.process, n.undecided, n.failed, n.starts)
	for i, r := range append([]Record{n.record, n.diskOrNew()}, n.unstored...) {
		f := r.fields
		fmt.Fprintf(&b, "\n  %s: %s failed %v killed %v, start %q handle %v next %q", [...]string{"agent", "disk", "put", "put", "put"}[i], r.status.State, r.status.Failed, r.killed, f.StartID, f.Handle != nil, f.NextStartID)
		if f.UnhandledExit != nil {
			fmt.Fprintf(&b, ", exit %+v", *f.UnhandledExit)
		}
		for d := f.FirstPendingDestroy; d != nil; d = d.Next {
			fmt.Fprintf(&b, ", destroy %q", d.StartID)
		}
		fmt.Fprintf(&b, ", restart requested %v, complete %v, ends %d", f.RestartRequest != nil, f.RunComplete, f.RestartState.EndsInWindow)
	}
	return b.String()
}

func (n situation) diskOrNew() Record {
	if n.isOnDisk {
		return n.disk
	}
	return canonical(New(searchTime))
}

func idOf(i int) string { return string(rune('a' + i)) }

func indexOf(id string) int { return int(id[0] - 'a') }

// names reports whether a record says that a start may have processes.
func (r Record) names(id string) bool {
	if r.fields.StartID == id || r.fields.NextStartID == id || r.LastStart() == Lost {
		return true
	}
	for d := r.fields.FirstPendingDestroy; d != nil; d = d.Next {
		if d.StartID == id || d.StartID == wildcard {
			return true
		}
	}
	return false
}

const wildcard = "*"

// names reports whether the agent's record, the disk or a pending put names a start.
func (n *situation) names(id string) bool {
	return n.record.names(id) || n.isOnDisk && n.disk.names(id) || slices.ContainsFunc(n.unstored, func(r Record) bool { return r.names(id) })
}

// forgetUnusedStarts makes start ids available again if nothing refers to them.
func (s *search) forgetUnusedStarts(n *situation) {
	for i := range n.starts {
		t := &n.starts[i]
		if t.executed && !t.destroyed || n.process == i {
			continue
		}
		if !n.names(idOf(i)) {
			*t = truth{}
		}
	}
}

// renameStarts gives the starts the same ids in all situations that differ only in the ids.
func (n *situation) renameStarts() {
	var order []int
	add := func(i int) {
		if !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	addIDs := func(r Record) {
		if r.fields.StartID != "" {
			add(indexOf(r.fields.StartID))
		}
		for _, d := range r.fields.StartsToDestroy() {
			if d.StartID != wildcard {
				add(indexOf(d.StartID))
			}
		}
	}
	addIDs(n.record)
	addIDs(n.diskOrNew())
	for _, r := range n.unstored {
		addIDs(r)
	}
	if n.process >= 0 {
		add(n.process)
	}
	for i, t := range n.starts {
		if t != (truth{}) {
			add(i)
		}
	}
	if slices.IsSorted(order) && (len(order) == 0 || order[len(order)-1] == len(order)-1) {
		return
	}
	starts := n.starts
	n.starts = [idCount]truth{}
	for i, old := range order {
		n.starts[i] = starts[old]
	}
	rename := func(id string) string {
		if id == "" || id == wildcard {
			return id
		}
		return idOf(slices.Index(order, indexOf(id)))
	}
	renameIn := func(r Record) Record {
		f := &r.fields
		f.StartID, f.NextStartID, f.FirstPendingDestroy = rename(f.StartID), rename(f.NextStartID), f.FirstPendingDestroy.renamed(rename)
		return r
	}
	n.record = renameIn(n.record)
	if n.isOnDisk {
		n.disk = renameIn(n.disk)
	}
	n.unstored = slices.Clone(n.unstored)
	for i := range n.unstored {
		n.unstored[i] = renameIn(n.unstored[i])
	}
	if n.process >= 0 {
		n.process = slices.Index(order, n.process)
	}
}

func (p *PendingDestroy) renamed(rename func(string) string) *PendingDestroy {
	if p == nil {
		return nil
	}
	d := *p
	d.StartID, d.Next = rename(p.StartID), p.Next.renamed(rename)
	return &d
}

// freeID returns an unused id.
func (n situation) freeID() string {
	for i := range n.starts {
		id := idOf(i)
		if n.starts[i] == (truth{}) && !n.names(id) {
			return id
		}
	}
	return ""
}

// check checks the promises that always hold.
func (s *search) check(n situation) {
	possible := append([]Record{n.diskOrNew()}, n.unstored...)
	for i, t := range n.starts {
		id := idOf(i)
		if !t.executed || t.destroyed {
			continue
		}
		if n.step != tasksteps.None && n.process != i && !n.record.names(id) {
			s.report(n, "the agent does not know that start %s may run", id)
		}
		for _, r := range possible {
			if !r.names(id) {
				s.report(n, "after a crash, the next agent does not know that start %s may run", id)
				break
			}
		}
	}
	if n.completed && !slices.Contains([]tasksteps.Step{tasksteps.RecoverTask, tasksteps.DestroyRemaining, tasksteps.CallStopHooks, tasksteps.None}, n.step) {
		s.report(n, "a complete task continues")
	}
}

// commit applies a fact, and puts what it changes. A put without a waiting caller reaches the disk with the next one.
func (s *search) commit(n situation, f Fact) situation {
	before := n.record
	r, change := Apply(n.record, f)
	if d, ok := f.(Decided); ok {
		s.checkDecision(n, before, d, change)
	}
	n.record = canonical(r)
	if change.Put == 0 {
		return n
	}
	put := n.record
	put.killed = false
	if change.Put == StatusPart && len(n.unstored) == 0 {
		put.fields = n.diskOrNew().fields
	}
	n.unstored = append(slices.Clone(n.unstored), put)
	if change.Durability == Soon {
		if len(n.unstored) > 1 {
			n = s.flush(n, len(n.unstored)-1)
		}
		return n
	}
	return s.flush(n, len(n.unstored))
}

// flush completes the first puts.
func (s *search) flush(n situation, count int) situation {
	for _, r := range n.unstored[:count] {
		for i := range n.starts {
			t, id := &n.starts[i], idOf(i)
			was := n.diskOrNew()
			if t.exitStored && was.fields.StartID == id && was.fields.UnhandledExit != nil && r.fields.UnhandledExit == nil {
				t.decided = true
			}
			t.exitStored = t.exitStored || r.fields.StartID == id && r.fields.UnhandledExit != nil
		}
		n.completed = n.completed || r.fields.RunComplete
		n.disk, n.isOnDisk = r, true
	}
	n.unstored = slices.Clone(n.unstored[count:])
	return n
}

// checkDecision checks the promises about decisions.
func (s *search) checkDecision(n situation, before Record, d Decided, change Change) {
	restarts := change.Decision.Action == restart.ActionRestart
	if before.killed && restarts {
		s.report(n, "a killed task starts again")
	}
	exit := before.fields.UnhandledExit
	if exit == nil || before.fields.StartID == "" || n.failed {
		return
	}
	t := n.starts[indexOf(before.fields.StartID)]
	if t.decided {
		s.report(n, "an exit is decided twice")
	}
	if t.requested && !before.killed && (!restarts || change.Decision.Delay > 0) {
		s.report(n, "a requested restart is a failure: %+v", change.Decision)
	}
}

// visit adds the following situations.
func (s *search) visit(n situation) {
	s.visitCrashes(n)
	if n.step == tasksteps.None {
		return
	}
	killed := n.record.killed
	if n.step != tasksteps.RecoverTask {
		if !killed && n.step != tasksteps.DropUnusedStartID {
			s.add(s.commit(n, Killed{Now: searchTime}))
		}
		s.add(s.commit(n, AllDestroyed{})) // another goroutine stores something
		s.abandon(n)
	}
	switch n.step {
	case tasksteps.RecoverTask:
		s.recover(n)
	case tasksteps.QueryEarlierStart:
		s.next(n, tasksteps.AgentShutdown)
		if killed {
			n.undecided = false
			s.nextAfterDecidedStart(s.commit(n, UndecidedStartOwed{}), tasksteps.NothingExecuted)
			return
		}
		s.queryEarlierStart(n, func(n situation) { s.nextAfterDecidedStart(n, tasksteps.NothingExecuted) })
	case tasksteps.TakeOverProcess:
		s.next(s.commit(n, TakenOver{Now: searchTime}), tasksteps.Done)
	case tasksteps.AwaitRestartDelay, tasksteps.AwaitStartGate:
		s.next(n, tasksteps.Done)
		s.interrupt(n)
		s.retryDestroys(n, s.add)
	case tasksteps.AwaitDriver, tasksteps.AwaitPluginTasks:
		s.destroy(n, func(n situation, ok bool) {
			if ok {
				s.next(n, tasksteps.Done)
			}
			s.failStart(n)
		})
		s.interrupt(n)
	case tasksteps.CallPrestartHooks:
		for _, next := range []situation{n, s.commit(n, HookAnswered{Hook: "h", Done: true})} {
			s.failStart(next)
			s.next(next, tasksteps.Done)
		}
		s.interrupt(n)
	case tasksteps.StoreStartID:
		s.storeStart(n)
		s.interrupt(n)
	case tasksteps.StartTask:
		s.start(n)
	case tasksteps.QueryStart:
		i := indexOf(n.record.fields.StartID)
		s.next(n, tasksteps.AgentShutdown)
		if killed {
			s.abandonStart(n)
		} else if n.starts[i].executed {
			n.process = i
			s.next(n, tasksteps.ProcessFound)
			s.next(n, tasksteps.ExitUnknown)
		} else {
			n.starts[i].called = false // certainly nothing was executed: the call may be repeated
			s.next(n, tasksteps.NothingExecuted)
			s.failStart(n)
		}
	case tasksteps.StoreHandle:
		s.requestRestart(n)
		s.next(s.commit(n, Started{Now: searchTime, Handle: &driver.Handle{}}), tasksteps.Done)
	case tasksteps.AwaitExit:
		s.next(n, tasksteps.AgentShutdown)
		if !killed {
			s.next(n, tasksteps.Done)
		}
		s.requestRestart(n)
		switch {
		case killed:
			s.next(n, tasksteps.Killed)
		case n.record.fields.RestartRequest != nil:
			s.next(n, tasksteps.RestartRequested)
		}
	case tasksteps.CallPreKillingHooks:
		s.next(n, tasksteps.AgentShutdown)
		s.next(n, tasksteps.Done, tasksteps.Done, tasksteps.Done, tasksteps.Done)
		s.next(n, tasksteps.Done, tasksteps.Done, tasksteps.Done, tasksteps.ExitNotReported, tasksteps.Done)
		if killed {
			s.next(n, tasksteps.ForceKilled, tasksteps.Done)
			s.next(n, tasksteps.Done, tasksteps.Done, tasksteps.Failed, tasksteps.AttemptsUsedUp, tasksteps.Done)
		} else {
			n.starts[n.process].requested = false
			s.next(s.commit(n, RestartFailed{}), tasksteps.Done, tasksteps.Done, tasksteps.Failed, tasksteps.RestartFailed)
		}
	case tasksteps.RecordExit:
		s.recordExit(n)
	case tasksteps.DestroyProcess:
		i := n.process
		n = s.commit(n, DestroyOwed{PendingDestroy{StartID: idOf(i), Handle: &driver.Handle{}}})
		n.process = -1
		s.destroy(n, func(n situation, _ bool) { s.next(n, tasksteps.Done) })
	case tasksteps.CallExitedHooks:
		s.next(n, tasksteps.Done)
		s.next(n, tasksteps.AgentShutdown)
	case tasksteps.DecideRestart:
		s.decide(n)
	case tasksteps.MarkDead:
		n = s.commit(n, UnusedStartDropped{})
		s.next(s.commit(n, Died{Now: searchTime}), tasksteps.Done)
	case tasksteps.AwaitRerun:
		s.next(n, tasksteps.AgentShutdown)
		s.next(n, tasksteps.NoRerun) // a poststop task
		if killed {
			s.next(n, tasksteps.Killed)
		}
		if n.record.MayRerun() {
			s.next(s.commit(n, RerunRequested{Now: searchTime}), tasksteps.RerunRequested)
			if n.record.fields.RestartRequest != nil { // it was requested under an earlier agent
				s.next(n, tasksteps.RerunRequested)
			}
		}
		s.retryDestroys(n, s.add)
	case tasksteps.DecideRerun:
		n = s.commit(n, RerunBegun{})
		n = s.decideAbout(n, restart.RunOutcome{RestartRequested: true})
		s.next(n, resultOfDecision(n))
	case tasksteps.DestroyRemaining:
		s.next(n, tasksteps.AgentShutdown)
		s.retryDestroys(n, func(n situation) { s.next(n, tasksteps.Done) })
	case tasksteps.CallStopHooks:
		s.next(s.commit(n, Completed{}), tasksteps.Done)
	case tasksteps.DropUnusedStartID:
		s.next(s.commit(n, UnusedStartDropped{}), tasksteps.Done)
	case tasksteps.AbandonTask:
		if n.undecided || n.process < 0 && n.record.fields.StartID != "" && n.record.fields.UnhandledExit == nil {
			n.undecided = false
			n = s.commit(n, UndecidedStartOwed{})
		}
		s.nextAfterDecidedStart(n, tasksteps.Done)
	default:
		s.report(n, "there is no such step")
	}
}

// next adds the situation after the given results, for the step and the following ones.
func (s *search) next(n situation, results ...tasksteps.Result) {
	for _, result := range results {
		step, ok := tasksteps.Next(n.step, result)
		if !ok {
			s.report(n, "the step cannot have the result %q", result)
			return
		}
		n.step = step
	}
	if n.step == tasksteps.CallPoststartHooks || n.step == tasksteps.CallShutdownHooks {
		s.next(n, tasksteps.Done) // these steps do not change the record, and a crash during them is like one in the next step
		return
	}
	s.add(n)
}

// interrupt adds the results if a step before the start is interrupted.
func (s *search) interrupt(n situation) {
	s.next(n, tasksteps.AgentShutdown)
	if n.record.killed {
		s.next(n, tasksteps.Killed)
	}
}

// abandon adds the next situation if an agent error ends the step.
func (s *search) abandon(n situation) {
	step, _ := tasksteps.Next(n.step, tasksteps.NoResult)
	if n.record.killed && step == tasksteps.AbandonTask && n.step != tasksteps.AbandonTask {
		n.step = step
		s.add(n)
	}
}

func noJitter(int64) int64 { return 0 }

// visitCrashes adds the next agent's first situations. An agent's end is like a crash after all puts are complete.
func (s *search) visitCrashes(n situation) {
	for count := range len(n.unstored) + 1 {
		if n.step == tasksteps.None {
			count = len(n.unstored)
		}
		next := s.flush(n, count)
		next.unstored, next.process, next.undecided, next.failed, next.step = nil, -1, false, false, tasksteps.First(true)
		s.add(next)
	}
}

// destroy calls the driver once for the owed starts, with success and without.
func (s *search) destroy(n situation, then func(n situation, ok bool)) {
	owed := n.record.fields.FirstPendingDestroy
	if owed == nil {
		then(n, true)
		return
	}
	then(n, false)
	for i := range n.starts {
		if id := idOf(i); owed.StartID == id || owed.StartID == wildcard {
			n.starts[i].destroyed = n.starts[i].executed
		}
	}
	n = s.commit(n, Destroyed{})
	s.destroy(n, then)
}

// retryDestroys calls then if the driver has destroyed all starts.
func (s *search) retryDestroys(n situation, then func(situation)) {
	s.destroy(n, func(n situation, ok bool) {
		if ok {
			then(s.commit(n, AllDestroyed{}))
		}
	})
}

func (s *search) failStart(n situation) {
	n = s.commit(n, StartFailed{Now: searchTime})
	n.failed = true
	s.next(n, tasksteps.Failed)
}

// requestRestart lets a user or a check request a process restart.
func (s *search) requestRestart(n situation) {
	for _, isFailure := range []bool{false, true} {
		if !n.record.killed {
			next := s.commit(n, RestartRequested{Now: searchTime, Request: RestartRequest{CountsAsFailure: isFailure}})
			next.starts[n.process].requested = !next.record.fields.RestartRequest.CountsAsFailure
			s.add(next)
		}
	}
}

func (s *search) storeStart(n situation) {
	stored := StartChosen{LastStart: searchTime, CandidateID: n.freeID()}
	if stored.CandidateID == "" {
		s.report(n, "more than %d starts are in use", idCount)
		return
	}
	refused := n
	refused.record, _ = Apply(n.record, stored)
	if refused.record.fields.StartID != n.record.fields.StartID { // there is a put
		refused.record = canonical(refused.record)
		s.failStart(refused)
	}
	s.next(s.commit(n, stored), tasksteps.Done)
}

// start calls StartTask.
func (s *search) start(n situation) {
	i := indexOf(n.record.fields.StartID)
	if t := n.starts[i]; t.called {
		s.report(n, "start %s is called twice", idOf(i))
		return
	}
	if n.record.status.State == model.TaskDead {
		s.report(n, "a dead task starts")
	}
	for j, t := range n.starts {
		if t.executed && !t.destroyed {
			s.report(n, "a task starts beside start %s", idOf(j))
		}
	}
	for _, executed := range []bool{false, true} {
		called := n
		called.starts[i] = truth{called: true, executed: executed}
		s.next(called, tasksteps.PluginDied)
		s.next(called, tasksteps.AgentShutdown)
		if called.record.killed {
			s.abandonStart(called)
		}
		if !executed {
			s.failStart(called)
			continue
		}
		called.process = i
		s.next(called, tasksteps.Done)
	}
}

func (s *search) abandonStart(n situation) {
	n = s.commit(n, DestroyOwed{PendingDestroy{StartID: n.record.fields.StartID}})
	s.destroy(n, func(n situation, _ bool) { s.next(n, tasksteps.Killed) })
}

func (s *search) recordExit(n situation) {
	i := n.process
	for _, end := range []restart.RunEnd{{Success: true}, {}, {StatusUnknown: true}} {
		if n.starts[i].exitStored {
			s.report(n, "an exit is stored twice")
		}
		fact := Exited{Now: searchTime, End: end, Policy: s.policy, CandidateID: n.freeID()}
		if fact.CandidateID == "" {
			s.report(n, "more than %d starts are in use", idCount)
			return
		}
		s.next(s.commit(n, fact), tasksteps.Done) // also after the disk has refused the put: the step waits until a later put is stored
		// A kill or an agent shutdown ends the wait.
		refused := n
		refused.record, _ = Apply(n.record, fact)
		refused.record = canonical(refused.record)
		if refused.record.killed {
			s.next(refused, tasksteps.Done)
		}
		s.next(refused, tasksteps.AgentShutdown)
	}
}

func (s *search) decide(n situation) {
	outcomes := []restart.RunOutcome{{}, {StartUnrecoverable: true}}
	if exit := n.record.fields.UnhandledExit; exit != nil {
		outcomes = []restart.RunOutcome{exit.Outcome()}
	}
	for _, outcome := range outcomes {
		next := s.decideAbout(n, outcome)
		next.failed = false
		s.next(next, resultOfDecision(next))
	}
}

func (s *search) decideAbout(n situation, outcome restart.RunOutcome) situation {
	return s.commit(n, Decided{Now: searchTime, Policy: s.policy, Outcome: outcome, RandomInt64N: noJitter})
}

func resultOfDecision(n situation) tasksteps.Result {
	if n.record.status.State == model.TaskDead {
		return tasksteps.NoRestart
	}
	return tasksteps.Restart
}

// recover recovers an earlier agent's task, after a boot and without one.
func (s *search) recover(n situation) {
	if !n.isOnDisk {
		n.record = canonical(New(searchTime))
		n.step = tasksteps.First(false)
		s.add(n)
		return
	}
	n.record = canonical(Restore(searchTime, n.disk.fields, n.disk.status))
	if n.record.fields.RunComplete {
		s.next(n, tasksteps.RunComplete)
		return
	}
	s.next(n, tasksteps.AgentShutdown)
	s.recoverAfterBoot(n)
	after := func(n situation) {
		s.destroy(n, func(n situation, ok bool) {
			if !ok {
				n = s.commit(n, DestroyDoubtful{})
			}
			if n.record.LastStart() != Ended {
				n = s.commit(n, NothingExecuted{})
			}
			s.nextAfterDecidedStart(n, tasksteps.Done)
		})
	}
	f := n.record.fields
	switch n.record.LastStart() {
	case NoStart:
		after(n)
	case Ended:
		if f.StartID != "" {
			n = s.commit(n, DestroyOwed{PendingDestroy{StartID: f.StartID, Handle: f.Handle}})
		}
		after(n)
	case WithHandle:
		found := n
		found.process = indexOf(f.StartID)
		s.nextAfterDecidedStart(found, tasksteps.Done)
		n = s.commit(n, DestroyOwed{PendingDestroy{StartID: f.StartID, Handle: f.Handle}})
		after(s.commit(n, ExitUnknown{Now: searchTime}))
	case Lost:
		n = s.commit(n, DestroyOwed{PendingDestroy{StartID: wildcard}})
		after(s.commit(n, ExitUnknown{Now: searchTime}))
	default:
		undecided := n
		undecided.undecided = true
		s.next(undecided, tasksteps.StartUndecided)
		s.queryEarlierStart(n, func(n situation) {
			if n.process >= 0 {
				s.nextAfterDecidedStart(n, tasksteps.Done)
			} else {
				after(n)
			}
		})
	}
}

func (s *search) recoverAfterBoot(n situation) {
	for i := range n.starts {
		n.starts[i].destroyed = n.starts[i].executed
	}
	n = s.commit(n, Rebooted{Now: searchTime})
	f := n.record.fields
	if f.FirstPendingDestroy != nil || f.NextStartID != "" || f.UnhandledExit == nil && n.record.status.State != model.TaskDead && (f.StartID != "" || f.Handle != nil) {
		s.report(n, "a start of the former boot is believed")
	}
	s.nextAfterDecidedStart(n, tasksteps.Done)
}

// queryEarlierStart has each true driver answer about a start without a handle.
func (s *search) queryEarlierStart(n situation, then func(situation)) {
	n.undecided = false
	start := n.record.LastStart()
	former := n.record.fields.StartID
	id := former
	if start == WithNextID {
		id = n.record.fields.NextStartID
	}
	t := n.starts[indexOf(id)]
	if !t.executed && start != RunningByID { // certainly nothing was executed
		nothing := n
		nothing.starts[indexOf(id)].called = false
		if start == WithNextID {
			before := nothing.record.fields
			nothing = s.commit(nothing, DestroyOwed{PendingDestroy{StartID: before.StartID, Handle: before.Handle}})
		}
		then(s.commit(nothing, NothingExecuted{}))
	}
	if start == WithNextID {
		// The driver has destroyed the former start before it has executed the next one, or has answered that it has neither.
		n.starts[indexOf(former)].destroyed = n.starts[indexOf(former)].executed
		outcome := n.record.fields.UnhandledExit.Outcome()
		for _, policy := range []restart.Policy{s.policy, {Mode: restart.ModeFail}} { // a job update may reduce the attempts
			decided := s.commit(n, Decided{Now: searchTime, Policy: policy, Outcome: outcome, RandomInt64N: noJitter, NextMayRun: true})
			if decided.record.fields.StartID == id {
				s.adoptOrOwe(decided, id, then)
			} else {
				then(decided)
			}
		}
		return
	}
	s.adoptOrOwe(n, id, then)
}

// adoptOrOwe has the answers about the current start, which has no handle: the driver has it, or returns "unknown".
func (s *search) adoptOrOwe(n situation, id string, then func(situation)) {
	if i := indexOf(id); n.starts[i].executed && !n.starts[i].destroyed {
		adopted := s.commit(n, Adopted{Handle: &driver.Handle{}})
		adopted.process = i
		then(adopted)
	}
	n = s.commit(n, DestroyOwed{PendingDestroy{StartID: id}})
	then(s.commit(n, ExitUnknown{Now: searchTime}))
}

// nextAfterDecidedStart adds the next situation after the driver's answer about the last start. otherwise is the result if there is neither
// an exit nor a process.
func (s *search) nextAfterDecidedStart(n situation, otherwise tasksteps.Result) {
	switch {
	case n.record.status.State == model.TaskDead && n.step != tasksteps.AbandonTask:
		s.next(n, tasksteps.TaskDead)
	case n.record.fields.UnhandledExit != nil:
		s.next(n, tasksteps.ExitFound)
	case n.process >= 0:
		s.next(n, tasksteps.ProcessFound)
	default:
		s.next(n, otherwise)
	}
}
