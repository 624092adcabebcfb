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

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// taskRenderer renders the templates of a task as long as the task exists.
type taskRenderer struct {
	namespace, region   string
	limits              templateLimits
	dirs                templateDirs
	seedFile            rootedPath
	taskDirPathReplacer *strings.Replacer // replaces references to the task's directories by the paths of the directories on the host
	taskEnv             map[string]string
	hostClient          *hostClient
	watcher             *sourceWatcher
	templateFiles       []*templateFile
	taskHasRun          bool // true if the task was running when the renderer started, or has started since
	evaluator           evaluator

	taskStarted        chan struct{} // receives an element when the task has started
	firstRenderDone    chan struct{} // closed when all templates are rendered, or rendering has failed
	cancel             context.CancelFunc
	renderLoopReturned chan struct{} // closed when renderUntilCancelled has returned

	mu             sync.Mutex
	lastRender     renderResult
	pendingRestart *restartRequest // restart that failed because the task was not running, or that an agent may not have carried out
	appliedOutputs appliedOutputs
}

// renderResult is the result of a rendering.
type renderResult struct {
	err error             // nil after a success
	env map[string]string // environment variables for the task; after an error the variables of the last success
}

// templateFile is one template of the task and its output.
type templateFile struct {
	templateBlock
	outputPath    rootedPath
	source        *templateSource // nil before the first evaluation
	existsOnDisk  bool
	contentOnDisk string // content of the file on disk

	latestOutput         string              // output of the last execution
	timeUsedInOutput     time.Time           // current time of the last execution; zero if latestOutput does not depend on the time
	changeCountsBySource map[dataSource]int  // source that the template has read -> its change count then; nil before the first execution
	missingSources       map[dataSource]bool // sources without data; while the map is not empty, latestOutput must not be used
}

// restartRequest is a restart of the task that a change_mode or an error
// requires.
type restartRequest struct {
	reason    string
	isFailure bool
}

// missingDataEventInterval is the interval of events about missing data.
const missingDataEventInterval = 3 * time.Second

// restartReason is the reason of restarts by change_mode, with the words of Nomad.
const restartReason = "Template with change_mode restart re-rendered"

// prestartOrPoststartFields holds the common fields of Prestart and Poststart requests.
type prestartOrPoststartFields struct {
	config    *hookConfig
	namespace string
	taskDir   hook.TaskDir
	taskEnv   map[string]string
}

func newTaskRenderer(host hook.Host, node hook.Node, scope hook.Scope, r prestartOrPoststartFields, taskHasRun bool, e evaluator) *taskRenderer {
	return &taskRenderer{
		namespace: r.namespace, region: node.Region,
		limits:   r.config.Limits,
		dirs:     templateDirs{taskDir: r.taskDir.Dir, sharedAllocDir: r.taskDir.SharedAllocDir, allowHostFiles: r.config.Limits.DisableFileSandbox},
		seedFile: rootedPath{r.taskDir.PrivateDir, "template-seed"}, appliedOutputs: appliedOutputs{file: rootedPath{r.taskDir.PrivateDir, "template-applied"}},
		taskDirPathReplacer: strings.NewReplacer(
			"${NOMAD_ALLOC_DIR}", r.taskDir.SharedAllocDir, "${NOMAD_TASK_DIR}", r.taskDir.LocalDir, "${NOMAD_SECRETS_DIR}", r.taskDir.SecretsDir),
		taskEnv: r.taskEnv, hostClient: newHostClient(host, scope), watcher: newSourceWatcher(), taskHasRun: taskHasRun, evaluator: e,
		taskStarted: make(chan struct{}, 1), firstRenderDone: make(chan struct{}), renderLoopReturned: make(chan struct{}),
	}
}

// startRendering renders the templates in the background until cancelAndWait is called.
func (t *taskRenderer) startRendering(blocks []templateBlock) {
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	go func() {
		defer close(t.renderLoopReturned)
		defer t.watcher.pollers.Wait()
		defer cancel()
		t.renderUntilCancelled(ctx, blocks)
	}()
}

func (t *taskRenderer) cancelAndWait() {
	t.cancel()
	<-t.renderLoopReturned
}

func (t *taskRenderer) renderUntilCancelled(ctx context.Context, blocks []templateBlock) {
	err := t.makeTemplateFiles(ctx, blocks)
	if err == nil && t.taskHasRun {
		t.loadFilesRenderedBefore()
		t.watcher.triggerRender()
	} else if err == nil {
		err = t.renderAndWriteUntilComplete(ctx)
	}
	if err != nil {
		t.killOrRestartAfterRenderError(ctx, err, true)
	}
	close(t.firstRenderDone)
	if err != nil && !t.taskHasRun {
		return
	}
	for {
		select {
		case <-t.watcher.changeNotice:
			t.applyChangesWhenStable(ctx)
		case <-t.taskStarted:
			t.performActionsAfterTaskStart(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// makeTemplateFiles resolves the destination paths of the templates.
func (t *taskRenderer) makeTemplateFiles(ctx context.Context, blocks []templateBlock) error {
	for _, b := range blocks {
		path, err := t.interpolate(ctx, b.DestPath)
		if err != nil {
			return err
		}
		at, ok := t.dirs.resolvePath(path, true)
		if !ok {
			return permanentErrorf("template destination path escapes alloc directory: %q", b.DestPath)
		}
		if _, err := b.fileMode(); err != nil {
			return err
		}
		t.templateFiles = append(t.templateFiles, &templateFile{templateBlock: b, outputPath: at})
	}
	return nil
}

// interpolate resolves the references in a text. References to directories of
// the task resolve to their paths on the host.
func (t *taskRenderer) interpolate(ctx context.Context, text string) (string, error) {
	text = t.taskDirPathReplacer.Replace(text)
	if !strings.Contains(text, "${") {
		return text, nil
	}
	err := t.hostClient.callUntilAnswered(ctx, func(s hook.Scope) (err error) {
		text, err = t.hostClient.host.Interpolate(ctx, s, text)
		return err
	})
	return text, err
}

// loadFilesRenderedBefore treats existing files as the last output of the templates,
// because the running task uses them.
func (t *taskRenderer) loadFilesRenderedBefore() {
	for _, f := range t.templateFiles {
		content, at, err := f.outputPath.readFile()
		f.existsOnDisk, f.contentOnDisk, f.timeUsedInOutput = err == nil, string(content), at
	}
	if vars, err := t.parseEnvFromOutputs(); err == nil {
		t.setRenderedEnvAndClearError(vars)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.appliedOutputs.load()
}

// renderAndWriteUntilComplete renders all templates for the first time, and emits events while
// data are missing.
func (t *taskRenderer) renderAndWriteUntilComplete(ctx context.Context) error {
	lastEvent, ticker := "", time.NewTicker(missingDataEventInterval)
	defer ticker.Stop()
	for {
		changed, missing, err := t.renderStaleFiles(ctx)
		if err != nil {
			return err
		}
		if err := t.writeOutputsAndSetEnv(changed); err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		text := formatMissingSources(missing)
	waiting:
		for {
			select {
			case <-t.watcher.changeNotice:
				break waiting
			case <-ticker.C:
				if lastEvent != text {
					t.emitEvent(ctx, "Template", text)
					lastEvent = text
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func formatMissingSources(missing []string) string {
	const maxListed = 3
	if more := len(missing) - maxListed; more > 0 {
		missing = append(slices.Clone(missing[:maxListed]), fmt.Sprintf("and %d more", more))
	}
	return "Missing: " + strings.Join(missing, ", ")
}

// renderStaleFiles renders the templates whose data have changed. It returns the
// templates with new output, and the missing sources of the other templates.
// Afterwards the watcher polls the sources that the templates have read.
func (t *taskRenderer) renderStaleFiles(ctx context.Context) (changed []*templateFile, missing []string, err error) {
	used, absent := map[dataSource]int{}, map[dataSource]bool{}
	for _, f := range t.templateFiles {
		if f.Once && f.existsOnDisk {
			continue
		}
		if f.changeCountsBySource == nil || !t.watcher.areUnchanged(f.changeCountsBySource) {
			if err := t.evaluateTemplateFile(ctx, f); err != nil {
				return nil, nil, err
			}
		}
		maps.Copy(absent, f.missingSources)
		if len(f.missingSources) > 0 || !f.Once {
			maps.Copy(used, f.changeCountsBySource)
		}
		if len(f.missingSources) == 0 && (!f.existsOnDisk || f.latestOutput != f.contentOnDisk) {
			changed = append(changed, f)
		}
	}
	t.watcher.pollOnlySources(ctx, used)
	for s := range absent {
		missing = append(missing, s.String())
	}
	slices.Sort(missing)
	return changed, missing, nil
}

// templateSource is the text of a template, with the name that errors in the template have.
type templateSource struct{ name, text string }

func (t *taskRenderer) evaluateTemplateFile(ctx context.Context, f *templateFile) (err error) {
	if f.source == nil {
		if f.source, err = t.readTemplateSource(ctx, f); err != nil {
			return err
		}
	}
	now := time.Now()
	if f.changeCountsBySource == nil && f.existsOnDisk {
		now = f.timeUsedInOutput // an earlier process has rendered the file at this time, possibly from the same data
	}
	for {
		data := &taskEvaluationData{task: t, changeCountsAtFirstRead: map[dataSource]int{}}
		result, err := t.evaluator.evaluate(ctx, &evaluationRequest{
			Name: f.source.name, Text: f.source.text, LeftDelim: f.LeftDelim, RightDelim: f.RightDelim, ErrMissingKey: f.ErrMissingKey,
			DeniedFunctions: t.limits.DeniedFunctions, Env: t.taskEnv, Namespace: t.namespace, Region: t.region, DestPathForSeed: f.DestPath, Now: now,
		}, data)
		if err != nil {
			return err
		}
		if f.changeCountsBySource == nil && result.UsesTime && result.Text != f.contentOnDisk && now.Equal(f.timeUsedInOutput) {
			now = time.Now() // with the time of the file, the output differs from the file: the data have changed, and the current time counts
			continue
		}
		f.latestOutput, f.changeCountsBySource, f.missingSources, f.timeUsedInOutput = result.Text, data.changeCountsAtFirstRead, map[dataSource]bool{}, time.Time{}
		for _, q := range result.MissingSources {
			f.missingSources[q.toDataSource(t.namespace, t.region)] = true
		}
		if result.UsesTime {
			f.timeUsedInOutput = now
		}
		return nil
	}
}

// readTemplateSource returns the text of a template, from the job or from the file that the job names.
func (t *taskRenderer) readTemplateSource(ctx context.Context, f *templateFile) (*templateSource, error) {
	if f.SourcePath == "" {
		return &templateSource{f.DestPath, f.EmbeddedTmpl}, nil
	}
	if f.EmbeddedTmpl != "" {
		return nil, permanentErrorf("template %q has both source and data: say one of them", f.DestPath)
	}
	path, err := t.interpolate(ctx, f.SourcePath)
	if err != nil {
		return nil, err
	}
	at, ok := t.dirs.resolveReadablePath(path)
	if !ok {
		return nil, permanentErrorf("template source path escapes alloc directory: %q", f.SourcePath)
	}
	text, _, err := at.readFile()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, permanentErrorf("template source %q: %w", f.SourcePath, err) // permanent: a retry cannot create the file
	case err != nil:
		return nil, fmt.Errorf("template source %q: %w", f.SourcePath, err)
	}
	return &templateSource{f.SourcePath, string(text)}, nil
}

// writeOutputsAndSetEnv writes the new output to the files, and sets the environment
// variables from templates with env = true.
func (t *taskRenderer) writeOutputsAndSetEnv(changed []*templateFile) error {
	for _, f := range changed {
		mode, err := f.fileMode()
		if err != nil {
			return err
		}
		uid, gid := f.fileOwner()
		if err := f.outputPath.replaceFileAtomically([]byte(f.latestOutput), mode, uid, gid, f.timeUsedInOutput); err != nil {
			return fmt.Errorf("template destination %q: %w", f.DestPath, stripErrorPath(err))
		}
		f.existsOnDisk, f.contentOnDisk = true, f.latestOutput
	}
	vars, err := t.parseEnvFromOutputs()
	if err != nil {
		return err
	}
	t.setRenderedEnvAndClearError(vars)
	return nil
}

// stripErrorPath removes the path from an error of the file system: it is not the
// path that the job has configured.
func stripErrorPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %w", link.Op, link.Err)
	}
	return err
}

func (t *taskRenderer) parseEnvFromOutputs() (map[string]string, error) {
	var envVars map[string]string
	for _, f := range t.templateFiles {
		if !f.Envvars || !f.existsOnDisk {
			continue
		}
		env, err := parseEnv(f.contentOnDisk)
		if err != nil {
			return nil, fmt.Errorf("template with env %q: %w", f.DestPath, err)
		}
		if envVars == nil {
			envVars = map[string]string{}
		}
		maps.Copy(envVars, env)
	}
	return envVars, nil
}

func (t *taskRenderer) setRenderedEnvAndClearError(vars map[string]string) {
	hashByDest := make(map[string]string)
	for _, f := range t.templateFiles {
		if f.existsOnDisk {
			hashByDest[f.DestPath] = f.hashContentOnDisk()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastRender, t.appliedOutputs.hashOnDiskByDest = renderResult{env: vars}, hashByDest
}

// applyChangesWhenStable handles changed data: it waits until the data are stable,
// renders and writes the templates, and performs their change_mode actions. The first call also performs the
// actions that an earlier process of the hook has not performed.
func (t *taskRenderer) applyChangesWhenStable(ctx context.Context) {
	changed, err := t.renderUntilStable(ctx)
	if err == nil && len(changed) > 0 {
		var maxSplay time.Duration
		for _, c := range changed {
			if c.ChangeMode != "noop" {
				maxSplay = max(maxSplay, c.Splay)
			}
		}
		// The splay delays the write too: if this process exits during the delay, the
		// next process still detects the change.
		if maxSplay > 0 && wait.Sleep(ctx, rand.N(maxSplay)) != nil {
			return
		}
		err = t.writeOutputsAndSetEnv(changed)
	}
	if err == nil {
		t.performChangeActions(ctx, t.addFilesWithLostActions(changed))
	}
	if err != nil && ctx.Err() == nil {
		t.killOrRestartAfterRenderError(ctx, err, false)
	}
}

// renderUntilStable renders the changed templates until no further change has
// occurred for the configured wait, and returns the templates with new output.
func (t *taskRenderer) renderUntilStable(ctx context.Context) ([]*templateFile, error) {
	began := time.Now()
	for {
		changed, _, err := t.renderStaleFiles(ctx)
		if err != nil || len(changed) == 0 {
			return nil, err
		}
		var minWait, maxWait time.Duration
		for _, c := range changed {
			l, m := c.effectiveWait(&t.limits)
			minWait, maxWait = max(minWait, l), max(maxWait, m)
		}
		timer := time.NewTimer(min(minWait, maxWait-time.Since(began)))
		select {
		case <-t.watcher.changeNotice:
			timer.Stop()
		case <-timer.C:
			return changed, nil
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// performChangeActions performs the change_mode actions of the changed templates. If
// one of them restarts the task, the other actions are omitted. Each signal is
// sent once, and scripts run concurrently. The outputs are applied then, but not after the request
// of a restart, which counts when the task has started again.
func (t *taskRenderer) performChangeActions(ctx context.Context, changed []*templateFile) {
	var signals []string
	var changeScripts []*changeScript
	for _, c := range changed {
		switch c.ChangeMode {
		case "restart":
			t.restartTaskNowOrAfterStart(ctx, restartRequest{reason: restartReason})
			return
		case "signal":
			if !slices.Contains(signals, c.ChangeSignal) {
				signals = append(signals, c.ChangeSignal)
			}
		case "script":
			if c.ChangeScript != nil {
				changeScripts = append(changeScripts, c.ChangeScript)
			}
		}
	}
	for _, name := range signals {
		t.signalTaskOrKill(ctx, name)
	}
	t.runScripts(ctx, changeScripts)
	if len(changed) > 0 && ctx.Err() == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.appliedOutputs.markApplied(changed)
	}
}

func (t *taskRenderer) restartTaskNowOrAfterStart(ctx context.Context, r restartRequest) {
	err := t.hostClient.callUntilAnswered(ctx, func(s hook.Scope) error {
		return t.hostClient.host.Restart(ctx, s, hook.RestartRequest{Reason: r.reason, CountAsFailure: r.isFailure})
	})
	switch {
	case ctx.Err() != nil: // the rendering was stopped during the call
	case errors.Is(err, hook.ErrTaskNotRunning):
		// The task may be starting with the old files, so it is restarted after its
		// start.
		t.mu.Lock()
		defer t.mu.Unlock()
		t.pendingRestart = &r
	case err != nil:
		t.emitEvent(ctx, hook.EventFailed, fmt.Sprintf("Template failed to restart the task: %v", err))
	}
}

func (t *taskRenderer) signalTaskOrKill(ctx context.Context, name string) {
	err := t.hostClient.callUntilAnswered(ctx, func(s hook.Scope) error {
		return t.hostClient.host.Signal(ctx, s, hook.SignalRequest{Signal: name, Reason: "Template re-rendered"})
	})
	switch {
	case ctx.Err() != nil: // the rendering was stopped during the call
	case errors.Is(err, hook.ErrTaskNotRunning):
		t.emitEvent(ctx, "", fmt.Sprintf("Template skipped signal %s: task is not running", name))
	case err != nil:
		t.killTask(ctx, fmt.Sprintf("Template failed to send signals [%s]: %v", name, err))
	}
}

func (t *taskRenderer) runScripts(ctx context.Context, scripts []*changeScript) {
	var wg sync.WaitGroup
	for _, s := range scripts {
		wg.Go(func() { t.runScriptInTask(ctx, s) })
	}
	wg.Wait()
}

func (t *taskRenderer) runScriptInTask(ctx context.Context, s *changeScript) {
	var execResult *driver.ExecResult
	err := t.hostClient.callUntilAnswered(ctx, func(scope hook.Scope) (err error) {
		execResult, err = t.hostClient.host.Exec(ctx, scope, hook.ExecRequest{Command: append([]string{s.Command}, s.Args...), Timeout: s.Timeout})
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
	case execResult.Exit.Signal != 0:
		outcome = fmt.Sprintf("Signal: %d", execResult.Exit.Signal)
	case execResult.Exit.ExitCode != 0:
		outcome = fmt.Sprintf("Exit code: %d", execResult.Exit.ExitCode)
	default:
		t.emitEvent(ctx, "", fmt.Sprintf("Template successfully ran script %s with arguments: %v. Exit code: 0", s.Command, s.Args))
		return
	}
	text := fmt.Sprintf("Template failed to run script %s with arguments: %v. %s", s.Command, s.Args, outcome)
	t.emitEvent(ctx, hook.EventFailed, text)
	if s.FailOnError {
		t.killTask(ctx, text)
	}
}

// performActionsAfterTaskStart performs the actions that need a running process: a pending
// restart, and scripts with run_on_first_render.
func (t *taskRenderer) performActionsAfterTaskStart(ctx context.Context) {
	t.mu.Lock()
	pendingChange := t.pendingRestart
	t.pendingRestart = nil
	t.mu.Unlock()
	if pendingChange != nil {
		t.restartTaskNowOrAfterStart(ctx, *pendingChange)
		return
	}
	if t.taskHasRun {
		return
	}
	t.taskHasRun = true
	var changeScripts []*changeScript
	for _, f := range t.templateFiles {
		if f.ChangeMode == "script" && f.ChangeScript != nil && f.ChangeScript.RunOnFirstRender {
			changeScripts = append(changeScripts, f.ChangeScript)
		}
	}
	t.runScripts(ctx, changeScripts)
}

// killOrRestartAfterRenderError stores an error of rendering. A permanent error kills the task. Other
// errors are handled by the restart policy: Prestart returns them, and a running
// task is restarted immediately.
func (t *taskRenderer) killOrRestartAfterRenderError(ctx context.Context, err error, isFirstRender bool) {
	err = renderError{err}
	t.mu.Lock()
	t.lastRender.err = err
	t.mu.Unlock()
	var permanentErr permanentError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &permanentErr):
		t.killTask(ctx, err.Error())
	case !isFirstRender || t.taskHasRun:
		t.restartTaskNowOrAfterStart(ctx, restartRequest{reason: err.Error(), isFailure: true})
	}
}

func (t *taskRenderer) killTask(ctx context.Context, reason string) {
	err := t.hostClient.callUntilAnswered(ctx, func(s hook.Scope) error { return t.hostClient.host.Kill(ctx, s, hook.KillRequest{Reason: reason}) })
	if err != nil && !errors.Is(err, hook.ErrTaskNotRunning) {
		t.emitEvent(ctx, hook.EventFailed, fmt.Sprintf("%s. The task could not be killed for that: %v", reason, err))
	}
}

func (t *taskRenderer) emitEvent(ctx context.Context, eventType, text string) {
	// The error is ignored, because it can be reported only by an event.
	_ = t.hostClient.callUntilAnswered(ctx, func(s hook.Scope) error {
		return t.hostClient.host.EmitEvent(ctx, s, hook.Event{Type: eventType, Message: text})
	})
}

// lastRenderError returns the last error of rendering.
func (t *taskRenderer) lastRenderError() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastRender.err
}

// takeRenderedEnvForStart returns the environment variables from templates, and the last error of
// rendering. If the task is not running, the process starts with the new values: takeRenderedEnvForStart removes a
// pending restart, and records the outputs as applied.
func (t *taskRenderer) takeRenderedEnvForStart(running bool) (map[string]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !running {
		t.pendingRestart = nil
		if t.lastRender.err == nil {
			t.appliedOutputs.markAllApplied()
		}
	}
	return maps.Clone(t.lastRender.env), t.lastRender.err
}

// repeatUnperformedRestart makes the next Poststart request a restart again that a change_mode has requested, if the task
// has not started since: the agent that accepted the request may have shut down.
func (t *taskRenderer) repeatUnperformedRestart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.templateFiles {
		if f.ChangeMode == "restart" && t.appliedOutputs.isUnapplied(f.DestPath) {
			t.pendingRestart = &restartRequest{reason: restartReason}
		}
	}
}

// addFilesWithLostActions returns changed and, in its first call, the templates whose output was written by an earlier
// process of the hook and is not applied. A file that the task has changed does not contain the output, and is not
// returned.
func (t *taskRenderer) addFilesWithLostActions(changed []*templateFile) []*templateFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.appliedOutputs.mayHaveLostActions {
		return changed
	}
	t.appliedOutputs.mayHaveLostActions = false
	for _, f := range t.templateFiles {
		rendered := f.changeCountsBySource != nil && len(f.missingSources) == 0 && f.latestOutput == f.contentOnDisk
		if rendered && t.appliedOutputs.isUnapplied(f.DestPath) && !slices.Contains(changed, f) {
			changed = append(changed, f)
		}
	}
	return changed
}
