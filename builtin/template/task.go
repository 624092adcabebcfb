package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// task renders the templates of one task for as long as the task lives.
type task struct {
	namespace, region string
	limits            limits
	dirs              dirs
	seedFile          rootedPath
	paths             *strings.Replacer // replaces directories that the task sees with directories of the host
	env               map[string]string
	client            *hostClient
	watcher           *watcher
	files             []*file
	recovered         bool // the task was running before this process started

	started chan struct{} // has an element after the task has started
	ready   chan struct{} // closed when all templates are rendered, or rendering has failed
	cancel  context.CancelFunc
	done    chan struct{} // closed when run has returned

	mu            sync.Mutex
	err           error             // why the templates cannot be rendered
	vars          map[string]string // environment variables for the task
	pendingChange *restart          // restart that found no running process
}

// file is one template of the task and its output.
type file struct {
	block
	output   rootedPath
	document *document // nil before the first execution
	rendered bool
	content  string // content of the file on disk

	text    string          // result of the last execution
	at      time.Time       // time of the last execution, if the text contains it
	seen    map[source]int  // turns of the sources that the template has read; nil before the first execution
	missing map[source]bool // missing sources, without which there is no text
}

// restart is a restart that a change requires.
type restart struct {
	reason  string
	failure bool
}

// missingPause is the interval of events about missing data.
const missingPause = 3 * time.Second

// reasonRestart is Nomad's text.
const reasonRestart = "Template with change_mode restart re-rendered"

// request holds the common fields of Prestart and Poststart requests.
type request struct {
	config    *config
	namespace string
	dir       hook.TaskDir
	env       map[string]string
}

func newTask(host hook.Host, node hook.Node, scope hook.Scope, r request, recovered bool) *task {
	return &task{
		namespace: r.namespace, region: node.Region,
		limits:   r.config.Limits,
		dirs:     dirs{task: r.dir.Dir, shared: r.dir.SharedAllocDir, host: r.config.Limits.AllFiles},
		seedFile: rootedPath{r.dir.PrivateDir, "template-seed"},
		paths: strings.NewReplacer(
			"${NOMAD_ALLOC_DIR}", r.dir.SharedAllocDir, "${NOMAD_TASK_DIR}", r.dir.LocalDir, "${NOMAD_SECRETS_DIR}", r.dir.SecretsDir),
		env: r.env, client: newHostClient(host, scope), watcher: newWatcher(), recovered: recovered,
		started: make(chan struct{}, 1), ready: make(chan struct{}), done: make(chan struct{}),
	}
}

// start starts rendering in the background, which continues until stop.
func (t *task) start(blocks []block) {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	go func() {
		defer close(t.done)
		defer t.watcher.wg.Wait()
		defer cancel()
		t.run(ctx, blocks)
	}()
}

func (t *task) stop() {
	t.cancel()
	<-t.done
}

func (t *task) run(ctx context.Context, blocks []block) {
	err := t.prepare(ctx, blocks)
	if err == nil && t.recovered {
		t.takeRenderedFiles()
		t.watcher.notify()
	} else if err == nil {
		err = t.renderFirst(ctx)
	}
	if err != nil {
		t.fail(ctx, err, true)
	}
	close(t.ready)
	if err != nil && !t.recovered {
		return
	}
	for {
		select {
		case <-t.watcher.changed:
			t.renderChanges(ctx)
		case <-t.started:
			t.afterStart(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// prepare resolves the paths of the templates.
func (t *task) prepare(ctx context.Context, blocks []block) error {
	for _, b := range blocks {
		path, err := t.interpolate(ctx, b.DestPath)
		if err != nil {
			return err
		}
		at, ok := t.dirs.find(path, true)
		if !ok {
			return permanentErrorf("template destination path escapes alloc directory: %q", b.DestPath)
		}
		if _, err := b.mode(); err != nil {
			return err
		}
		t.files = append(t.files, &file{block: b, output: at})
	}
	return nil
}

// interpolate resolves the references of a text. Directories are paths of the
// host, not paths that the task sees.
func (t *task) interpolate(ctx context.Context, text string) (string, error) {
	text = t.paths.Replace(text)
	if !strings.Contains(text, "${") {
		return text, nil
	}
	err := t.client.call(ctx, func(s hook.Scope) (err error) {
		text, err = t.client.host.Interpolate(ctx, s, text)
		return err
	})
	return text, err
}

// takeRenderedFiles treats the files on disk as rendered, because the running
// task uses them.
func (t *task) takeRenderedFiles() {
	for _, f := range t.files {
		content, at, err := f.output.read()
		f.rendered, f.content, f.at = err == nil, string(content), at
	}
	if vars, err := t.readVars(); err == nil {
		t.setVars(vars)
	}
}

// renderFirst renders all templates once, and emits events about missing data.
func (t *task) renderFirst(ctx context.Context) error {
	told, ticker := "", time.NewTicker(missingPause)
	defer ticker.Stop()
	for {
		changed, missing, err := t.execute(ctx)
		if err != nil {
			return err
		}
		if err := t.write(changed); err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		text := missingText(missing)
	waiting:
		for {
			select {
			case <-t.watcher.changed:
				break waiting
			case <-ticker.C:
				if told != text {
					t.emit(ctx, "Template", text)
					told = text
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func missingText(missing []string) string {
	const named = 3
	if more := len(missing) - named; more > 0 {
		missing = append(slices.Clone(missing[:named]), fmt.Sprintf("and %d more", more))
	}
	return "Missing: " + strings.Join(missing, ", ")
}

// execute renders the templates whose data have changed. It returns the
// templates with new output, and the missing sources of the others. Afterwards
// the watcher follows the sources that the templates have read.
func (t *task) execute(ctx context.Context) (changed []*file, missing []string, err error) {
	used, absent := map[source]int{}, map[source]bool{}
	for _, f := range t.files {
		if f.Once && f.rendered {
			continue
		}
		if f.seen == nil || !t.watcher.isCurrent(f.seen) {
			if err := t.executeFile(ctx, f); err != nil {
				return nil, nil, err
			}
		}
		maps.Copy(absent, f.missing)
		if len(f.missing) > 0 || !f.Once {
			maps.Copy(used, f.seen)
		}
		if len(f.missing) == 0 && (!f.rendered || f.text != f.content) {
			changed = append(changed, f)
		}
	}
	t.watcher.follow(ctx, used)
	for s := range absent {
		missing = append(missing, s.String())
	}
	slices.Sort(missing)
	return changed, missing, nil
}

func (t *task) executeFile(ctx context.Context, f *file) (err error) {
	if f.document == nil {
		if f.document, err = t.compile(ctx, f); err != nil {
			return err
		}
	}
	now := time.Now()
	if f.seen == nil && f.rendered {
		now = f.at // another process has rendered the file at this time, maybe with the same data
	}
	for {
		p := &renderPass{ctx: ctx, task: t, of: f, now: now, sourcesRead: map[source]int{}, missing: map[source]bool{}}
		text, err := f.document.execute(p)
		if err != nil {
			return err
		}
		if f.seen == nil && p.usesTime && text != f.content && now.Equal(f.at) {
			now = time.Now() // the data have changed since
			continue
		}
		f.text, f.seen, f.missing, f.at = text, p.sourcesRead, p.missing, time.Time{}
		if p.usesTime {
			f.at = now
		}
		return nil
	}
}

func (t *task) compile(ctx context.Context, f *file) (*document, error) {
	if f.SourcePath == "" {
		return compile(f.DestPath, f.EmbeddedTmpl, &f.block)
	}
	if f.EmbeddedTmpl != "" {
		return nil, permanentErrorf("template %q has both source and data: say one of them", f.DestPath)
	}
	path, err := t.interpolate(ctx, f.SourcePath)
	if err != nil {
		return nil, err
	}
	at, ok := t.dirs.readable(path)
	if !ok {
		return nil, permanentErrorf("template source path escapes alloc directory: %q", f.SourcePath)
	}
	text, _, err := at.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, permanentErrorf("template source %q: %w", f.SourcePath, err) // a retry cannot create the file
	case err != nil:
		return nil, fmt.Errorf("template source %q: %w", f.SourcePath, err)
	}
	return compile(f.SourcePath, string(text), &f.block)
}

// write writes the files, and sets the environment variables from them.
func (t *task) write(changed []*file) error {
	for _, f := range changed {
		mode, err := f.mode()
		if err != nil {
			return err
		}
		uid, gid := f.owner()
		if err := f.output.write([]byte(f.text), mode, uid, gid, f.at); err != nil {
			return fmt.Errorf("template destination %q: %w", f.DestPath, reason(err))
		}
		f.rendered, f.content = true, f.text
	}
	vars, err := t.readVars()
	if err != nil {
		return err
	}
	t.setVars(vars)
	return nil
}

// reason returns an error of the file system without file names, which differ
// from the user's.
func reason(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %w", link.Op, link.Err)
	}
	return err
}

func (t *task) readVars() (map[string]string, error) {
	var vars map[string]string
	for _, f := range t.files {
		if !f.Envvars || !f.rendered {
			continue
		}
		env, err := parseEnv(f.content)
		if err != nil {
			return nil, fmt.Errorf("template with env %q: %w", f.DestPath, err)
		}
		if vars == nil {
			vars = map[string]string{}
		}
		maps.Copy(vars, env)
	}
	return vars, nil
}

func (t *task) setVars(vars map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.vars, t.err = vars, nil
}

// renderChanges renders the templates with changed data after the data have
// settled, and does the change_mode actions of these templates.
func (t *task) renderChanges(ctx context.Context) {
	changed, err := t.awaitStableData(ctx)
	if err == nil && len(changed) > 0 {
		var most time.Duration
		for _, c := range changed {
			if c.ChangeMode != "noop" {
				most = max(most, c.Splay)
			}
		}
		// The splay comes before the write: if this process dies in between, the
		// next process still finds a change.
		if most > 0 && sleep(ctx, rand.N(most)) != nil {
			return
		}
		if err = t.write(changed); err == nil {
			t.doChangeActions(ctx, changed)
		}
	}
	if err != nil && ctx.Err() == nil {
		t.fail(ctx, err, false)
	}
}

// awaitStableData blocks until no further change has occurred for the configured
// time.
func (t *task) awaitStableData(ctx context.Context) ([]*file, error) {
	began := time.Now()
	for {
		changed, _, err := t.execute(ctx)
		if err != nil || len(changed) == 0 {
			return nil, err
		}
		var least, most time.Duration
		for _, c := range changed {
			l, m := c.quiet(&t.limits)
			least, most = max(least, l), max(most, m)
		}
		timer := time.NewTimer(min(least, most-time.Since(began)))
		select {
		case <-t.watcher.changed:
			timer.Stop()
		case <-timer.C:
			return changed, nil
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// doChangeActions does the actions of the changed templates: a restart replaces
// all others, each signal is sent once, scripts run concurrently.
func (t *task) doChangeActions(ctx context.Context, changed []*file) {
	var signals []string
	var scripts []*script
	for _, c := range changed {
		switch c.ChangeMode {
		case "restart":
			t.restart(ctx, restart{reason: reasonRestart})
			return
		case "signal":
			if !slices.Contains(signals, c.ChangeSignal) {
				signals = append(signals, c.ChangeSignal)
			}
		case "script":
			if c.ChangeScript != nil {
				scripts = append(scripts, c.ChangeScript)
			}
		}
	}
	for _, name := range signals {
		t.signal(ctx, name)
	}
	t.runScripts(ctx, scripts)
}

func (t *task) restart(ctx context.Context, r restart) {
	err := t.client.call(ctx, func(s hook.Scope) error { return t.client.host.Restart(ctx, s, r.reason, r.failure) })
	switch {
	case errors.Is(err, hook.ErrTaskNotRunning):
		// The task may be starting with the old files.
		t.mu.Lock()
		defer t.mu.Unlock()
		t.pendingChange = &r
	case err != nil:
		t.emit(ctx, hook.EventFailed, fmt.Sprintf("Template failed to restart the task: %v", err))
	}
}

func (t *task) signal(ctx context.Context, name string) {
	err := t.client.call(ctx, func(s hook.Scope) error { return t.client.host.Signal(ctx, s, name, "Template re-rendered") })
	switch {
	case errors.Is(err, hook.ErrTaskNotRunning):
		t.emit(ctx, "", fmt.Sprintf("Template skipped signal %s: task is not running", name))
	case err != nil:
		t.kill(ctx, fmt.Sprintf("Template failed to send signals [%s]: %v", name, err))
	}
}

func (t *task) runScripts(ctx context.Context, scripts []*script) {
	var wg sync.WaitGroup
	for _, s := range scripts {
		wg.Go(func() { t.runScript(ctx, s) })
	}
	wg.Wait()
}

func (t *task) runScript(ctx context.Context, s *script) {
	var result *driver.ExecResult
	err := t.client.call(ctx, func(scope hook.Scope) (err error) {
		result, err = t.client.host.Exec(ctx, scope, append([]string{s.Command}, s.Args...), s.Timeout)
		return err
	})
	if ctx.Err() != nil {
		return
	}
	outcome := ""
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		outcome = fmt.Sprintf("It was ended after %v", s.Timeout)
	case err != nil:
		outcome = err.Error()
	case result.Exit.Signal != 0:
		outcome = fmt.Sprintf("Signal: %d", result.Exit.Signal)
	case result.Exit.ExitCode != 0:
		outcome = fmt.Sprintf("Exit code: %d", result.Exit.ExitCode)
	default:
		t.emit(ctx, "", fmt.Sprintf("Template successfully ran script %s with arguments: %v. Exit code: 0", s.Command, s.Args))
		return
	}
	text := fmt.Sprintf("Template failed to run script %s with arguments: %v. %s", s.Command, s.Args, outcome)
	t.emit(ctx, hook.EventFailed, text)
	if s.FailOnError {
		t.kill(ctx, text)
	}
}

// afterStart does the actions that need a running process.
func (t *task) afterStart(ctx context.Context) {
	t.mu.Lock()
	pendingChange := t.pendingChange
	t.pendingChange = nil
	t.mu.Unlock()
	if pendingChange != nil {
		t.restart(ctx, *pendingChange)
		return
	}
	if t.recovered {
		return
	}
	t.recovered = true
	var scripts []*script
	for _, f := range t.files {
		if f.ChangeMode == "script" && f.ChangeScript != nil && f.ChangeScript.RunOnFirstRender {
			scripts = append(scripts, f.ChangeScript)
		}
	}
	t.runScripts(ctx, scripts)
}

// fail stores an error for Prestart. A permanent error kills the task. Other
// errors are left to the restart policy: Prestart returns them, and a running
// task is restarted at once.
func (t *task) fail(ctx context.Context, err error, starting bool) {
	err = failure{err}
	t.mu.Lock()
	t.err = err
	t.mu.Unlock()
	var never permanentError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &never):
		t.kill(ctx, err.Error())
	case !starting || t.recovered:
		t.restart(ctx, restart{reason: err.Error(), failure: true})
	}
}

func (t *task) kill(ctx context.Context, reason string) {
	err := t.client.call(ctx, func(s hook.Scope) error { return t.client.host.Kill(ctx, s, reason) })
	if err != nil && !errors.Is(err, hook.ErrTaskNotRunning) {
		t.emit(ctx, hook.EventFailed, fmt.Sprintf("%s. The task could not be killed for that: %v", reason, err))
	}
}

func (t *task) emit(ctx context.Context, kind, text string) {
	// A failed event has no other channel, so the error is ignored.
	_ = t.client.call(ctx, func(s hook.Scope) error {
		return t.client.host.EmitEvent(ctx, s, hook.Event{Type: kind, Message: text})
	})
}

// failure returns the last error of rendering.
func (t *task) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// envForStart returns the environment variables for a process that starts now. If
// the task is not running, begin drops a pending restart.
func (t *task) envForStart(running bool) (map[string]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !running {
		t.pendingChange = nil
	}
	return maps.Clone(t.vars), t.err
}
