package top

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const (
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

// program is the tea.Program that shows the table, for its model. send and killProgram may be called concurrently.
type program struct {
	onInit      func()         // starts the goroutines that send messages
	send        func(tea.Msg)  // blocks until Update has received the message, or the program has ended
	killProgram func()         // restores the terminal
	continued   chan os.Signal // gets SIGCONT, except while suspend runs
}

// ui is the live table, a tea.Model. The goroutine that calls Update owns all fields. Other goroutines send it messages.
// It is large because bubbletea has one model for all views.
type ui struct {
	program
	options
	ctx        context.Context // ends when runUntilQuit returns; Update has no parameter for it
	client     *api.Client
	streams    *cli.Streams
	useColours bool

	width, height int    // size of the terminal; 0 before the first message
	screen        string // what View returns
	isDrawDue     bool   // a drawMsg will arrive

	cluster     *knownJobsAndAllocs
	conditions  []apiclient.Condition // last known conditions of the agent, the most severe first
	healthByJob jobHealths            // last known health; nil before it was read
	tableView   tableView
	editsFilter bool          // the last line takes the text of the filter
	question    *confirmation // nil unless the last line asks whether to send a request
	page        *textPage     // nil while the table is shown
	message     cell          // shown in the last line until the next key
	agentErr    error         // why the agent cannot be reached; nil while it is reachable

	isUsageRequestPending bool // usage was requested, and the responses have not arrived
}

// confirmation is a question about a request to the agent. Only the key y sends the request.
type confirmation struct {
	question, operation string
	send                func(context.Context) error
}

// Update also gets the messages of package tea, and stateUpdate, cell (the text of the last line) and *textPage (which
// replaces the table).
type (
	jobHealths   map[apiclient.JobKey]*apiclient.JobHealth
	conditions   []apiclient.Condition
	usageSamples []allocSample
	usageTick    struct{} // the usage must be measured again
	drawMsg      struct{} // changes were collected, and must be drawn
	continuedMsg struct{} // the process was stopped, and a shell has used the terminal
	pageLines    struct {
		page   *textPage
		colour string
		texts  []string
	}
)

func newUI(client *api.Client, s *cli.Streams, o options) *ui {
	return &ui{
		options: o, client: client, streams: s, useColours: s.SupportsColours(s.Out),
		cluster: newCluster(), tableView: tableView{table: table{collapsedRows: map[rowID]bool{}, sortedBy: byName, showStoppedAndReplaced: o.showStoppedAndReplaced}},
	}
}

// runUntilQuit shows the table until the user quits, a signal ends the command, or the terminal is closed. It restores
// the terminal.
func (u *ui) runUntilQuit(ctx context.Context, in, out *os.File, listed *jobAndAllocLists) error {
	ctx, cancel := signal.NotifyContext(ctx, cli.TerminationSignals()...)
	defer cancel()
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, terminal.Continued)
	defer signal.Stop(continued)
	// Without a profile, the library starts tmux to ask it for its colours.
	p := tea.NewProgram(u, tea.WithInput(terminalInput{in, cancel}), tea.WithOutput(out), tea.WithoutSignalHandler(), tea.WithColorProfile(colorprofile.ANSI))
	defer context.AfterFunc(ctx, p.Quit)() // the end of a context of the library would not wait for the reader of the terminal
	wait := func() {}
	u.ctx, u.program = ctx, program{func() { wait = u.follow(ctx, listed, continued) }, p.Send, p.Kill, continued}
	_, err := p.Run()
	if ctx.Err() != nil {
		err = nil // a signal, or a closed terminal
	}
	cancel()
	wait()
	return err
}

// terminalInput is a terminal whose end, which the library ignores, calls onEnd.
type terminalInput struct {
	*os.File
	onEnd func()
}

// Read implements io.Reader.
func (t terminalInput) Read(p []byte) (int, error) {
	n, err := t.File.Read(p)
	if err != nil {
		t.onEnd()
	}
	return n, err
}

// follow starts the goroutines that send the changes of jobs, allocations, health and conditions to the model until ctx
// ends. wait blocks until they have ended.
func (u *ui) follow(ctx context.Context, listed *jobAndAllocLists, continued <-chan os.Signal) (wait func()) {
	u.replaceJobsAndAllocs(listed)
	var wg sync.WaitGroup
	for _, f := range []func(){
		func() {
			followChangesReconnecting(ctx, u.client, listed, func(update stateUpdate) { u.send(update) })
		},
		func() { followHealth(ctx, u.client, func(h jobHealths) { u.send(h) }) },
		func() { pollConditions(ctx, u.client, func(found conditions) { u.send(found) }) },
		func() {
			tick := time.NewTicker(u.usageInterval)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					u.send(usageTick{})
				case <-continued:
					u.send(continuedMsg{})
				case <-ctx.Done():
					return
				}
			}
		},
	} {
		wg.Go(func() { callWithPanicCleanup(f, u.killProgram) })
	}
	return wg.Wait
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

// Init implements tea.Model. No goroutine can panic before the library has prepared the terminal, because killProgram
// would restore it too early.
func (u *ui) Init() tea.Cmd {
	u.onInit()
	return nil
}

// View implements tea.Model.
func (u *ui) View() tea.View {
	return tea.View{Content: u.screen, AltScreen: true, DisableBracketedPasteMode: true}
}

// Update implements tea.Model. It draws the screen after a key at once, and after other messages with a delay.
func (u *ui) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		cmd := u.handleKey(msg)
		return u, u.drawThen(cmd)
	case tea.WindowSizeMsg:
		u.width, u.height = msg.Width, msg.Height
		return u, u.drawThen(nil)
	case continuedMsg:
		return u, tea.Exec(terminalFunc(func() error { return nil }), nil)
	case usageTick:
		u.tableView.needsUsageRequest, u.tableView.areRowsStale = true, u.tableView.areRowsStale || u.tableView.sortedBy != byName
		return u, u.drawThen(nil)
	case drawMsg:
		u.isDrawDue = false
		return u, u.drawThen(nil)
	case stateUpdate:
		u.applyUpdate(msg)
	case jobHealths:
		u.healthByJob = msg
		u.cluster.setHealth(msg)
		u.tableView.areRowsStale = true
	case conditions:
		u.conditions = msg
	case usageSamples:
		u.isUsageRequestPending = false
		for _, s := range msg {
			u.cluster.setAllocUsage(s.allocID, s.usage)
		}
		u.tableView.areRowsStale = u.tableView.areRowsStale || u.tableView.sortedBy == byCPU || u.tableView.sortedBy == byMemory
	case cell:
		u.message = msg
	case *textPage:
		u.page = msg
	case pageLines:
		msg.page.addSanitizedLines(msg.colour, msg.texts...)
	default:
		return u, nil
	}
	if u.isDrawDue {
		return u, nil
	}
	u.isDrawDue = true
	return u, tea.Tick(drawDelay, func(time.Time) tea.Msg { return drawMsg{} })
}

// drawThen draws the screen. It returns cmd or, if that is nil, a request for usage that the screen needs.
func (u *ui) drawThen(cmd tea.Cmd) tea.Cmd {
	if u.height > 0 {
		u.screen = u.draw(time.Now())
	}
	if cmd == nil && u.tableView.needsUsageRequest {
		return u.requestUsageOfVisibleAllocs()
	}
	return cmd
}

func (u *ui) replaceJobsAndAllocs(l *jobAndAllocLists) {
	u.cluster.replaceAllKeepingUsage(l.jobs, l.allocs)
	u.tableView.areRowsStale, u.tableView.needsUsageRequest = true, true
}

func (u *ui) applyUpdate(update stateUpdate) {
	u.agentErr = update.connectionErr
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
func (u *ui) requestUsageOfVisibleAllocs() tea.Cmd {
	if u.isUsageRequestPending || u.agentErr != nil || u.page != nil {
		return nil
	}
	u.tableView.needsUsageRequest = false
	allocs := u.tableView.visibleRunningAllocs()
	if len(allocs) == 0 {
		return nil
	}
	u.isUsageRequestPending = true
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(u.ctx, sampleTimeout)
		defer cancel()
		return usageSamples(readAllocUsage(ctx, u.client, allocs, u.killProgram))
	}
}

// terminalFunc is a function that uses the terminal in place of the table: tea.Exec restores the terminal, calls it, and
// shows the table again. Messages wait until it has returned.
type terminalFunc func() error

func (f terminalFunc) Run() error        { return f() }
func (terminalFunc) SetStdin(io.Reader)  {}
func (terminalFunc) SetStdout(io.Writer) {}
func (terminalFunc) SetStderr(io.Writer) {}

// suspend stops the process until the user continues it. No signal handler for SIGTSTP must be installed elsewhere,
// because Go would ignore the signal from then on. The suspension of the library waits for SIGCONT, which never comes if
// no shell can continue the process.
func (u *ui) suspend() error {
	signal.Stop(u.continued) // the table is drawn again after suspend in any case; twice at once, the library leaves the terminal released
	defer signal.Notify(u.continued, terminal.Continued)
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, terminal.Continued)
	defer signal.Stop(continued)
	if err := terminal.SuspendProcessGroup(); err != nil {
		return err
	}
	select {
	case <-continued:
	case <-time.After(suspendDelay):
	}
	return nil
}
