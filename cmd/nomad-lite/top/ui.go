package top

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const (
	// escapeDelay is how long the table waits for more bytes after an escape character, which can be the escape key or
	// the start of another key.
	escapeDelay = 50 * time.Millisecond
	// suspendDelay is how long suspend waits for the stop of the process. The kernel does not stop a process that no
	// shell can continue.
	suspendDelay = 100 * time.Millisecond
	// maxSampled is the largest number of allocations whose usage is requested. A collapsed job on the screen can have
	// any number.
	maxSampled = 100
	// sampleTimeout limits the requests for the usage of the visible allocations.
	sampleTimeout = 10 * time.Second
)

// drawDelay is how long changes are collected before the screen is drawn. After a key the screen is drawn at once.
// Tests change drawDelay.
var drawDelay = 50 * time.Millisecond

// ui is the live table. The goroutine of the method run owns all fields. Other goroutines send functions to calls,
// which that goroutine calls.
type ui struct {
	client        *api.Client
	streams       *cli.Streams
	screen        *terminal.FullScreen
	terminalInput *os.File
	useColours    bool
	usageInterval time.Duration
	followTask    FollowTaskFunc

	wg            sync.WaitGroup
	mainLoopCalls chan func() // functions that other goroutines send to the goroutine of runMainLoop
	keyReader     keyReader

	cluster         *knownJobsAndAllocs
	conditions      []apiclient.Condition                     // last known conditions of the agent, the most severe first
	healthByJob     map[apiclient.JobKey]*apiclient.JobHealth // last known health; nil before it was read
	tableView       tableView
	prompt          *prompt   // nil unless the last line takes text
	shownTextPage   *textPage // nil while the table is shown
	lastLineMessage cell      // shown in the last line until the next key
	connectionErr   error     // why the agent cannot be reached; nil while it is reachable
	isShellRunning  bool      // a shell in a task controls the terminal

	isUsageRequestPending bool // usage was requested, and the responses have not arrived
}

// tableView is the table with its rows, the selection, and the position of the screen in the rows.
type tableView struct {
	table
	allRows           []row
	areRowsStale      bool // allRows must be computed again, because the cluster or the settings have changed
	needsUsageRequest bool // usage must be requested for the visible rows
	selectedID        rowID
	selectedIndex     int // index of the selected row
	firstRowOnScreen  int // index of the first row on the screen
	rowsOnScreen      int // number of rows on the screen; 0 before the first draw
}

// prompt is a question in the last line of the screen.
type prompt struct {
	label           string
	enteredText     string
	nextKeyIsAnswer bool
	onChange        func(text string) // called for each change; can be nil
	onAnswer        func(text string) // called with the answer; after Escape, with ""
}

func newUI(client *api.Client, s *cli.Streams, in, out *os.File, o options) *ui {
	return &ui{
		client: client, streams: s, screen: terminal.NewFullScreen(in, out), terminalInput: in, useColours: s.SupportsColours(out), usageInterval: o.usageInterval, followTask: o.followTask,
		mainLoopCalls: make(chan func()), keyReader: keyReader{inputChunks: make(chan []byte)},
		cluster: newCluster(), tableView: tableView{table: table{collapsedRows: map[rowID]bool{}, sortedBy: byName, showStoppedAndReplaced: o.showStoppedAndReplaced}},
	}
}

// runUntilQuit shows the table until the user quits, a signal ends the command, or the terminal is closed. It restores
// the terminal.
func (u *ui) runUntilQuit(ctx context.Context, initialLists *jobAndAllocLists) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, append(cli.TerminationSignals(), terminal.Resized, terminal.Continued)...)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer u.wg.Wait()
	defer u.keyReader.stopReading()
	defer cancel()
	defer u.screen.Leave()
	if err := u.enterFullScreenAndReadKeys(); err != nil {
		return err
	}

	updates := make(chan stateUpdate)
	u.startGoroutine(func() { followChangesReconnecting(ctx, u.client, initialLists, updates) })
	u.startGoroutine(func() {
		followHealth(ctx, u.client, func(healthByJob map[apiclient.JobKey]*apiclient.JobHealth) {
			u.callInMainLoop(ctx, func() {
				u.healthByJob = healthByJob
				u.cluster.setHealth(healthByJob)
				u.tableView.areRowsStale = true
			})
		})
	})
	u.startGoroutine(func() {
		pollConditions(ctx, u.client, func(found []apiclient.Condition) {
			u.callInMainLoop(ctx, func() { u.conditions = found })
		})
	})
	u.replaceJobsAndAllocs(initialLists)
	return u.runMainLoop(ctx, signals, updates)
}

func (u *ui) runMainLoop(ctx context.Context, signals <-chan os.Signal, updates <-chan stateUpdate) error {
	tick := time.NewTicker(u.usageInterval)
	defer tick.Stop()
	var drawTime, escapeTime <-chan time.Time // nil while nothing is due
	var input []byte
	dirty := true
	for {
		if dirty {
			if err := u.drawScreenAndRequestUsage(ctx); err != nil {
				return err
			}
			dirty, drawTime = false, nil
		}
		select {
		case chunk := <-u.keyReader.inputChunks:
			if chunk == nil {
				return nil // the terminal was closed
			}
			input = append(input, chunk...)
			var quit bool
			if input, quit = u.handleInput(ctx, input, false); quit {
				return nil
			}
			dirty, escapeTime = true, nil
			if len(input) > 0 {
				escapeTime = time.After(escapeDelay)
			}
		case <-escapeTime:
			var quit bool
			if input, quit = u.handleInput(ctx, input, true); quit {
				return nil
			}
			dirty, escapeTime = true, nil
		case sig := <-signals:
			quit, err := u.handleSignal(sig)
			if quit || err != nil {
				return err
			}
			dirty = true
		case up := <-updates:
			u.applyUpdate(up)
			if drawTime == nil {
				drawTime = time.After(drawDelay)
			}
		case call := <-u.mainLoopCalls:
			call()
			if drawTime == nil {
				drawTime = time.After(drawDelay)
			}
		case <-tick.C:
			u.tableView.needsUsageRequest, u.tableView.areRowsStale = true, u.tableView.areRowsStale || u.tableView.sortedBy != byName
			dirty = true
		case <-drawTime:
			dirty = true
		}
	}
}

// handleInput handles all complete keys of the input, and returns the incomplete remainder. noMoreInput means that no
// input has followed for a while. quit is true if the user quits.
func (u *ui) handleInput(ctx context.Context, input []byte, noMoreInput bool) (rest []byte, quit bool) {
	for {
		key, n := terminal.DecodeKey(input, noMoreInput)
		if n == 0 {
			return input, false
		}
		input = input[n:]
		if u.handleKey(ctx, key) {
			return nil, true
		}
	}
}

// handleSignal redraws the screen after a signal of the terminal, and reports whether any other signal ends the
// command.
func (u *ui) handleSignal(sig os.Signal) (quit bool, err error) {
	switch sig {
	case terminal.Resized:
		u.screen.RedrawAllAtNextDraw()
	case terminal.Continued: // a shell has used the terminal
		if u.isShellRunning {
			return false, nil
		}
		u.screen.Leave()
		return false, u.screen.Enter()
	default:
		return true, nil
	}
	return false, nil
}

// suspend restores the terminal and stops the process until the user continues it. No signal handler for SIGTSTP must
// be installed elsewhere, because Go would ignore the signal from then on.
func (u *ui) suspend() error {
	u.keyReader.stopReading()
	u.screen.Leave()
	if err := terminal.SuspendProcessGroup(); err != nil {
		return err
	}
	time.Sleep(suspendDelay)
	return u.enterFullScreenAndReadKeys()
}

// enterFullScreenAndReadKeys shows the table on the whole terminal, and starts to read keys.
func (u *ui) enterFullScreenAndReadKeys() error {
	if err := u.screen.Enter(); err != nil {
		return err
	}
	u.tableView.needsUsageRequest = true
	return u.keyReader.startReading(u)
}

// startGoroutine runs f in a goroutine that the method run waits for. If f panics, the terminal is restored before the
// process ends.
func (u *ui) startGoroutine(f func()) {
	u.wg.Go(func() { callWithPanicCleanup(f, u.screen.Leave) })
}

// callWithPanicCleanup calls f. If f panics, it calls cleanup, and the panic continues.
func callWithPanicCleanup(f, cleanup func()) {
	returned := false
	defer func() {
		if !returned {
			cleanup()
		}
	}()
	f()
	returned = true
}

// runThenCallInMainLoop calls f in another goroutine, and then the function that f returns in the goroutine of run.
func (u *ui) runThenCallInMainLoop(ctx context.Context, f func(context.Context) func()) {
	u.startGoroutine(func() { u.callInMainLoop(ctx, f(ctx)) })
}

// callInMainLoop lets the goroutine of run call f. It blocks until that goroutine has received f, or until ctx ends.
func (u *ui) callInMainLoop(ctx context.Context, f func()) {
	select {
	case u.mainLoopCalls <- f:
	case <-ctx.Done():
	}
}

func (u *ui) replaceJobsAndAllocs(l *jobAndAllocLists) {
	u.cluster.replaceAllKeepingUsage(l.jobs, l.allocs)
	u.tableView.areRowsStale, u.tableView.needsUsageRequest = true, true
}

func (u *ui) applyUpdate(update stateUpdate) {
	u.connectionErr = update.connectionErr
	if update.newLists != nil {
		u.replaceJobsAndAllocs(update.newLists)
	}
	for _, e := range update.events {
		u.cluster.applyEvent(e)
	}
	u.cluster.setHealth(u.healthByJob) // jobs that the update has added can have one
	u.tableView.areRowsStale = true
}

// requestUsageOfVisibleAllocs requests the usage of the allocations on the screen, unless a request is in progress or
// the table is not shown.
func (u *ui) requestUsageOfVisibleAllocs(ctx context.Context) {
	if u.isUsageRequestPending || u.isShellRunning || u.connectionErr != nil || u.shownTextPage != nil {
		return
	}
	u.tableView.needsUsageRequest = false
	allocs := u.tableView.visibleRunningAllocs()
	if len(allocs) == 0 {
		return
	}
	u.isUsageRequestPending = true
	u.runThenCallInMainLoop(ctx, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
		defer cancel()
		samples := readAllocUsage(ctx, u.client, allocs, u.screen.Leave)
		return func() {
			u.isUsageRequestPending = false
			for _, s := range samples {
				u.cluster.setAllocUsage(s.allocID, s.usage)
			}
			u.tableView.areRowsStale = u.tableView.areRowsStale || u.tableView.sortedBy == byCPU || u.tableView.sortedBy == byMemory
		}
	})
}

// keyReader reads the input of the terminal in a goroutine.
type keyReader struct {
	inputChunks   chan []byte // input bytes; a nil chunk means that the terminal was closed
	input         *terminal.InterruptibleInput
	stopRequested chan struct{} // closed by stopReading
	readerExited  chan struct{} // closed when the goroutine has exited
}

func (k *keyReader) startReading(u *ui) error {
	input, err := terminal.NewInterruptibleInput(u.terminalInput)
	if err != nil {
		return err
	}
	k.input, k.stopRequested, k.readerExited = input, make(chan struct{}), make(chan struct{})
	done, ended := k.stopRequested, k.readerExited
	u.startGoroutine(func() {
		defer close(ended)
		for {
			chunk := make([]byte, 256)
			n, err := input.Read(chunk)
			if err != nil {
				chunk = nil
			} else {
				chunk = chunk[:n]
			}
			select {
			case k.inputChunks <- chunk:
			case <-done:
				return
			}
			if err != nil {
				return
			}
		}
	})
	return nil
}

// stopReading ends the goroutine, so that another reader of the terminal gets the next key. A second call has no
// effect.
func (k *keyReader) stopReading() {
	if k.input == nil {
		return
	}
	close(k.stopRequested)
	_ = k.input.Close() // closing a pipe does not fail
	<-k.readerExited
	k.input = nil
}
