package top

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const (
	// escapeDelay is the time in which the bytes of a key must follow its first byte, which is also the
	// byte of the escape key.
	escapeDelay = 50 * time.Millisecond
	// suspendDelay is the time in which a suspended process stops. The kernel does not stop a process that no shell can
	// continue.
	suspendDelay = 100 * time.Millisecond
	// maxSampled is the number of allocations whose usage is requested at once. Rows of a terminal are fewer, but a
	// collapsed job has any number.
	maxSampled = 100
	// sampleTimeout is the timeout of the requests for the usage of all visible allocations.
	sampleTimeout = 10 * time.Second
)

// drawDelay is the time in which changes are collected before the screen is drawn. A key draws at once. Tests change it.
var drawDelay = 50 * time.Millisecond

// ui is the live table. The goroutine of run owns all fields; the others send functions to calls.
type ui struct {
	client   *api.Client
	streams  *cli.Streams
	screen   *terminal.FullScreen
	in       *os.File
	colours  bool
	interval time.Duration

	wg    sync.WaitGroup
	calls chan func() // results of other goroutines
	keys  keyReader

	cluster *cluster
	view    tableView
	prompt  *prompt // nil unless the last line takes text
	page    *page   // nil while the table is shown
	message cell    // in the last line until the next key
	lost    error   // why the agent cannot be reached; nil while it can
	running bool    // a program in a task has the terminal

	sampling bool // samples were requested, and have not arrived
}

// tableView is the part of the table on the screen.
type tableView struct {
	table
	shown      []row
	stale      bool // shown is older than the cluster or the table
	wantSample bool // samples are due, or rows without samples have become visible
	selected   rowID
	cursor     int // index of the selected row
	first      int // index of the first row on the screen
	height     int // number of rows on the screen
}

// prompt is a question in the last line.
type prompt struct {
	label   string
	text    string
	confirm bool              // a single key answers
	changed func(text string) // called for each change; can be nil
	done    func(text string) // called with the answer, which is "" after Escape
}

func newUI(client *api.Client, s *cli.Streams, in, out *os.File, o options) *ui {
	return &ui{
		client: client, streams: s, screen: terminal.NewFullScreen(in, out), in: in, colours: s.SupportsColours(out), interval: o.interval,
		calls: make(chan func()), keys: keyReader{chunks: make(chan []byte)},
		cluster: newCluster(), view: tableView{table: table{collapsed: map[rowID]bool{}, sort: byName, all: o.all}},
	}
}

// run shows the table until the user quits, a signal ends the command or the terminal is closed. It restores the
// terminal.
func (u *ui) run(ctx context.Context, from *lists) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, append(cli.TerminationSignals(), terminal.Resized, terminal.Continued)...)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer u.wg.Wait()
	defer u.keys.stop()
	defer cancel()
	defer u.screen.Leave()
	if err := u.takeTerminal(); err != nil {
		return err
	}

	updates := make(chan update)
	u.goSafely(func() { follow(ctx, u.client, from, updates) })
	u.setLists(from)
	return u.loop(ctx, signals, updates)
}

func (u *ui) loop(ctx context.Context, signals <-chan os.Signal, updates <-chan update) error {
	tick := time.NewTicker(u.interval)
	defer tick.Stop()
	var drawTime, escapeTime <-chan time.Time // nil while nothing is due
	var input []byte
	dirty := true
	for {
		if dirty {
			if err := u.draw(ctx); err != nil {
				return err
			}
			dirty, drawTime = false, nil
		}
		select {
		case chunk := <-u.keys.chunks:
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
			u.apply(up)
			if drawTime == nil {
				drawTime = time.After(drawDelay)
			}
		case call := <-u.calls:
			call()
			if drawTime == nil {
				drawTime = time.After(drawDelay)
			}
		case <-tick.C:
			u.view.wantSample, u.view.stale = true, u.view.stale || u.view.sort != byName
			dirty = true
		case <-drawTime:
			dirty = true
		}
	}
}

// handleInput handles all complete keys of the input, and returns the rest. It reports whether the user quits.
func (u *ui) handleInput(ctx context.Context, input []byte, complete bool) (rest []byte, quit bool) {
	for {
		key, n := terminal.DecodeKey(input, complete)
		if n == 0 {
			return input, false
		}
		input = input[n:]
		if u.handleKey(ctx, key) {
			return nil, true
		}
	}
}

// handleSignal reports whether a signal ends the command.
func (u *ui) handleSignal(sig os.Signal) (quit bool, err error) {
	switch sig {
	case terminal.Resized:
		u.screen.Redraw()
	case terminal.Continued: // a shell has used the terminal
		if u.running {
			return false, nil
		}
		u.screen.Leave()
		return false, u.screen.Enter()
	default:
		return true, nil
	}
	return false, nil
}

// suspend restores the terminal and stops the process, until the user continues it. The signal must not be caught
// elsewhere: Go would ignore it from then on.
func (u *ui) suspend() error {
	u.keys.stop()
	u.screen.Leave()
	if err := terminal.Suspend(); err != nil {
		return err
	}
	time.Sleep(suspendDelay)
	return u.takeTerminal()
}

// takeTerminal shows the table on the terminal, and starts to read keys.
func (u *ui) takeTerminal() error {
	if err := u.screen.Enter(); err != nil {
		return err
	}
	u.view.wantSample = true
	return u.keys.start(u)
}

// goSafely runs a function in a goroutine that run waits for. If the function panics, the terminal is restored
// before the process ends.
func (u *ui) goSafely(f func()) {
	u.wg.Go(func() { callWithCleanup(f, u.screen.Leave) })
}

// callWithCleanup calls f, and cleanup if f panics. The panic continues.
func callWithCleanup(f, cleanup func()) {
	returned := false
	defer func() {
		if !returned {
			cleanup()
		}
	}()
	f()
	returned = true
}

// background runs a function in a goroutine, and the function that it returns in the goroutine of run.
func (u *ui) background(ctx context.Context, f func(context.Context) func()) {
	u.goSafely(func() { u.call(ctx, f(ctx)) })
}

// call runs a function in the goroutine of run. It blocks until that goroutine takes the function, or ctx ends.
func (u *ui) call(ctx context.Context, f func()) {
	select {
	case u.calls <- f:
	case <-ctx.Done():
	}
}

func (u *ui) setLists(l *lists) {
	u.cluster.replace(l.jobs, l.allocs)
	u.view.stale, u.view.wantSample = true, true
}

func (u *ui) apply(up update) {
	u.lost = up.err
	if up.lists != nil {
		u.setLists(up.lists)
	}
	for _, e := range up.events {
		u.cluster.apply(e)
	}
	u.view.stale = true
}

// sample requests the usage of the allocations on the screen, unless requests are under way.
func (u *ui) sample(ctx context.Context) {
	if u.sampling || u.running || u.lost != nil || u.page != nil {
		return
	}
	u.view.wantSample = false
	allocs := u.view.visibleAllocs()
	if len(allocs) == 0 {
		return
	}
	u.sampling = true
	u.background(ctx, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
		defer cancel()
		samples := readUsage(ctx, u.client, allocs, u.screen.Leave)
		return func() {
			u.sampling = false
			for _, s := range samples {
				u.cluster.setUsage(s.allocID, s.usage)
			}
			u.view.stale = u.view.stale || u.view.sort == byCPU || u.view.sort == byMemory
		}
	})
}

// keyReader reads the terminal.
type keyReader struct {
	chunks chan []byte // input; nil when the terminal was closed
	input  *terminal.Input
	done   chan struct{} // closed by stop
	ended  chan struct{} // closed by the goroutine that reads
}

func (k *keyReader) start(u *ui) error {
	input, err := terminal.NewInput(u.in)
	if err != nil {
		return err
	}
	k.input, k.done, k.ended = input, make(chan struct{}), make(chan struct{})
	done, ended := k.done, k.ended
	u.goSafely(func() {
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
			case k.chunks <- chunk:
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

// stop ends the reader: further keys are for another reader of the terminal. A second call has no effect.
func (k *keyReader) stop() {
	if k.input == nil {
		return
	}
	close(k.done)
	_ = k.input.Close() // closing a pipe does not fail
	<-k.ended
	k.input = nil
}
