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

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/builtin/template/evaluators"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// taskRenderer renders the templates of a task as long as the task exists.
type taskRenderer struct {
	region              string
	request             evaluate.Request // what the requests of all templates have: environment, namespace, job, denied functions
	settings            operatorSettings
	dirs                templateDirs
	taskDirPathReplacer *strings.Replacer // replaces references to the task's directories by the paths of the directories on the host
	hostClient          *hostClient
	watcher             *sourceWatcher
	templateFiles       []*templateFile
	taskHasRun          bool // true if the task was running when the renderer started, or has started since
	evaluators          Evaluators
	requests            int // Prestart and Poststart requests since the first one; Hook.mu guards it
	renderings          storedRenderings

	taskStarted        chan struct{} // receives an element when the task has started
	firstRenderDone    chan struct{} // closed when all templates are rendered, or rendering has failed
	cancel             context.CancelFunc
	renderLoopReturned chan struct{} // closed when renderUntilCancelled has returned

	mu             sync.Mutex
	lastRender     renderResult
	pendingRestart *restartRequest // restart that failed because the task was not running, or that an agent may not have carried out
	appliedOutputs appliedOutputs
}

// renderResult is the error and the task's environment after all templates were rendered once.
type renderResult struct {
	err error             // nil after a success
	env map[string]string // environment variables for the task; after an error the variables of the last success
}

// templateFile is one template of the task and its output.
// It is large because it has the settings of the block, too.
type templateFile struct {
	templateBlock
	outputPath   rootedPath
	source       *string // text of the template; nil before the first evaluation
	runsAlone    bool    // the template has exceeded the limits of the shared evaluators
	existsOnDisk bool
	onDisk       string // hash of the content of the file on disk
	envText      string // content of the file on disk if Envvars is true

	latest         rendering              // of the last evaluation
	latestOutput   []byte                 // output of the last evaluation; nil if it is on disk
	changeCounts   map[evaluate.Query]int // queries of the last evaluation -> their change counts then; nil before the first evaluation
	missingSources []string               // names of data that do not exist; while there are some, latest must not be used
}

// setOnDisk records the content of the file on disk.
func (f *templateFile) setOnDisk(content []byte, hash string) {
	f.existsOnDisk, f.onDisk, f.latestOutput = true, hash, nil
	if f.Envvars {
		f.envText = string(content)
	}
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
	config  *hookConfig
	alloc   hook.Alloc
	taskDir hook.TaskDir
	taskEnv map[string]string
}

func newTaskRenderer(host hook.Host, node hook.Node, scope hook.Scope, r prestartOrPoststartFields, taskHasRun bool, e Evaluators) *taskRenderer {
	t := &taskRenderer{
		region: node.Region,
		request: evaluate.Request{
			DeniedFunctions: r.config.Settings.functionDenylist(), Env: r.taskEnv, Namespace: r.alloc.Namespace, JobID: r.alloc.JobID,
		},
		settings:       r.config.Settings,
		dirs:           templateDirs{taskDir: r.taskDir.Dir, sharedAllocDir: r.taskDir.SharedAllocDir, allowHostFiles: r.config.Settings.DisableFileSandbox},
		appliedOutputs: appliedOutputs{file: newPrivatePath(r.taskDir, "template-applied")},
		renderings:     storedRenderings{file: newPrivatePath(r.taskDir, "template-inputs")},
		taskDirPathReplacer: strings.NewReplacer(
			"${NOMAD_ALLOC_DIR}", r.taskDir.SharedAllocDir, "${NOMAD_TASK_DIR}", r.taskDir.LocalDir, "${NOMAD_SECRETS_DIR}", r.taskDir.SecretsDir),
		hostClient: newHostClient(host, scope), taskHasRun: taskHasRun, evaluators: e,
		taskStarted: make(chan struct{}, 1), firstRenderDone: make(chan struct{}), renderLoopReturned: make(chan struct{}),
	}
	t.watcher = newSourceWatcher(t.newFetchFunc, r.config.Settings.Retry)
	return t
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
		if at.isBelow(t.renderings.file) {
			return permanentErrorf("template destination path is in the private directory of the task: %q", b.DestPath)
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
		if content, err := f.outputPath.readFile(); err == nil {
			f.setOnDisk(content, hashText(content))
		}
	}
	t.renderings.load()
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
	var lastEvents []string
	ticker := time.NewTicker(missingDataEventInterval)
	defer ticker.Stop()
	for {
		changed, missing, err := t.renderStaleFiles(ctx)
		if isEvaluatorUnavailable(err) {
			t.emitEvent(ctx, "Template", err.Error())
			if err := wait.Sleep(ctx, evaluatorRetryDelay); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := t.writeOutputsAndSetEnv(changed); err != nil {
			return err
		}
		t.reportEnvLosses(ctx, changed)
		if len(missing) == 0 {
			return nil
		}
	waiting:
		for {
			select {
			case <-t.watcher.changeNotice:
				break waiting
			case <-ticker.C:
				events := t.describeMissingSources(missing)
				for _, text := range events {
					if !slices.Contains(lastEvents, text) {
						t.emitEvent(ctx, "Template", text)
					}
				}
				lastEvents = events
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// describeMissingSources returns the texts of the events about missing data: Nomad's text, the errors of failed reads, and the first name
// that only Consul or Vault has.
func (t *taskRenderer) describeMissingSources(missing []string) (events []string) {
	const maxListed = 3
	listed := missing
	if more := len(missing) - maxListed; more > 0 {
		listed = append(slices.Clone(missing[:maxListed]), fmt.Sprintf("and %d more", more))
	}
	events = []string{"Missing: " + strings.Join(listed, ", ")}
	for i, text := range t.watcher.fetchErrors() {
		if i == maxListed {
			break
		}
		events = append(events, "Template cannot read "+text)
	}
	for _, name := range missing {
		if system := evaluate.SystemOf(name); system != "" {
			text := fmt.Sprintf("Template waits for %s: this node has no %s", name, system)
			if strings.HasPrefix(name, "health.service(") || strings.HasPrefix(name, "catalog.services(") {
				text = fmt.Sprintf("Template waits for %s: no job in the namespace has a service with provider = \"consul\"", name)
			}
			events = append(events, text)
			break
		}
	}
	return events
}

// renderStaleFiles renders the templates whose data have changed. It returns the templates with new output, and the names of the
// missing data of the others. Afterwards the watcher polls the data that the templates have read.
func (t *taskRenderer) renderStaleFiles(ctx context.Context) (changed []*templateFile, missing []string, err error) {
	used := map[evaluate.Query]bool{}
	unchanged := map[string]rendering{}
	for _, f := range t.templateFiles {
		if f.Once && f.existsOnDisk {
			continue
		}
		if f.changeCounts == nil || !t.watcher.areUnchanged(f.changeCounts) {
			if err := t.evaluateTemplateFile(ctx, f); err != nil {
				return nil, nil, err
			}
		}
		missing = append(missing, f.missingSources...)
		if len(f.missingSources) > 0 || !f.Once {
			for q := range f.changeCounts {
				used[q] = true
			}
		}
		switch {
		case len(f.missingSources) > 0:
		case !f.existsOnDisk || f.latest.Output != f.onDisk:
			changed = append(changed, f)
		case f.latest != t.renderings.byDest[f.DestPath]:
			unchanged[f.DestPath] = f.latest
		}
	}
	t.renderings.store(unchanged)
	if err := checkQueryCount(used); err != nil {
		return nil, nil, err
	}
	t.watcher.pollOnly(ctx, used)
	slices.Sort(missing)
	return changed, slices.Compact(missing), nil
}

// evaluateTemplateFile evaluates a template, and fetches the data that it reads, until they are all known.
func (t *taskRenderer) evaluateTemplateFile(ctx context.Context, f *templateFile) (err error) {
	if f.source == nil {
		text, err := t.readTemplateSource(ctx, f)
		if err != nil {
			return err
		}
		f.source = &text
	}
	r := t.request
	r.Text, r.LeftDelim, r.RightDelim, r.ErrMissingKey, r.DestPath = *f.source, f.LeftDelim, f.RightDelim, f.ErrMissingKey, f.outputPath.String()
	queries := slices.Collect(maps.Keys(f.changeCounts))
	for {
		var changeCounts map[evaluate.Query]int
		r.Data, changeCounts = t.watcher.answers(queries)
		result, err := t.evaluateWithinLimits(ctx, f, &r)
		if err != nil {
			return err
		}
		if len(result.Unknown) > 0 {
			queries = append(queries, result.Unknown...)
			if err := t.watcher.fetchAll(ctx, result.Unknown); err != nil {
				return err
			}
			continue
		}
		if result.Err != "" {
			return newRenderError(result.Err)
		}
		f.changeCounts, f.missingSources = make(map[evaluate.Query]int, len(result.Used)), result.Missing
		for _, q := range result.Used {
			f.changeCounts[q] = changeCounts[q]
		}
		r.Data = slices.DeleteFunc(r.Data, func(d evaluate.Datum) bool { _, used := f.changeCounts[d.Query]; return !used })
		f.latest, f.latestOutput = rendering{hashInputs(&r, result.UsedEnv), hashText(result.Text)}, result.Text
		if f.existsOnDisk && t.isRenderedFromSameInputs(f) {
			f.latest.Output, f.latestOutput = f.onDisk, nil
		}
		return nil
	}
}

// isRenderedFromSameInputs reports whether the file on disk is an output for the inputs of the last evaluation.
func (t *taskRenderer) isRenderedFromSameInputs(f *templateFile) bool {
	stored, ok := t.renderings.byDest[f.DestPath]
	if !ok || stored.Inputs == "" {
		// An earlier version rendered the file without a record. The output of a nondeterministic template always differs, so the file
		// counts as current.
		return t.taskHasRun && evaluate.IsNondeterministic(*f.source, f.LeftDelim, f.RightDelim)
	}
	return stored == rendering{f.latest.Inputs, f.onDisk}
}

// evaluateWithinLimits evaluates a template in a shared evaluator or, after it has exceeded the limits there, alone.
func (t *taskRenderer) evaluateWithinLimits(ctx context.Context, f *templateFile, r *evaluate.Request) (*evaluate.Result, error) {
	if !f.runsAlone {
		result, err := t.evaluators.Evaluate(ctx, r)
		limit, exceeded := errors.AsType[*evaluators.LimitError](err)
		if !exceeded {
			return result, err
		}
		f.runsAlone = true
		t.emitEvent(ctx, "Template", fmt.Sprintf("Template %q takes more than %s. From now on it is evaluated in a process of its own, with the limits %s",
			f.DestPath, limit.Limit, t.evaluators.AloneLimits()))
	}
	result, err := t.evaluators.EvaluateAlone(ctx, r)
	if limit, exceeded := errors.AsType[*evaluators.LimitError](err); exceeded {
		return nil, newRenderError(fmt.Sprintf("template %q takes more than %s", f.DestPath, limit.Limit))
	}
	return result, err
}

// readTemplateSource returns the text of a template, from the job or from the file that the job names. The restart policy handles an error
// of the file, because an artifact can create the file before the next attempt. A template with both source and data is a permanent error.
func (t *taskRenderer) readTemplateSource(ctx context.Context, f *templateFile) (string, error) {
	if f.SourcePath == "" {
		return f.EmbeddedTmpl, nil
	}
	if f.EmbeddedTmpl != "" {
		return "", permanentErrorf("template %q has both source and data: remove one of them", f.DestPath)
	}
	path, err := t.interpolate(ctx, f.SourcePath)
	if err != nil {
		return "", err
	}
	at, ok := t.dirs.resolveReadablePath(path)
	if !ok {
		return "", fmt.Errorf("template source path escapes alloc directory: %q", f.SourcePath)
	}
	text, err := at.readFile()
	if err != nil {
		return "", fmt.Errorf("failed to read template: source %q: %w", f.SourcePath, stripErrorPath(err))
	}
	return string(text), nil
}

// writeOutputsAndSetEnv writes the new output to the files, and sets the environment
// variables from templates with env = true.
func (t *taskRenderer) writeOutputsAndSetEnv(changed []*templateFile) error {
	written := map[string]rendering{}
	for _, f := range changed {
		mode, err := f.fileMode()
		if err != nil {
			return err
		}
		uid, gid := f.fileOwner()
		if err := f.outputPath.replaceFileAtomically(f.latestOutput, mode, uid, gid); err != nil {
			return fmt.Errorf("template destination %q: %w", f.DestPath, stripErrorPath(err))
		}
		f.setOnDisk(f.latestOutput, f.latest.Output)
		written[f.DestPath] = f.latest
	}
	t.renderings.store(written)
	vars, err := t.parseEnvFromOutputs()
	if err != nil {
		return err
	}
	t.setRenderedEnvAndClearError(vars)
	return nil
}

// reportEnvLosses emits an event for each line of an env file that loses characters. The event omits the value: a part of a secret is not
// redacted.
func (t *taskRenderer) reportEnvLosses(ctx context.Context, changed []*templateFile) {
	for _, f := range changed {
		if !f.Envvars {
			continue
		}
		for _, loss := range EnvLosses(f.envText) {
			t.emitEvent(ctx, "Template", fmt.Sprintf("Template %q: line %d: variable %s loses quotes, or the text after #", f.DestPath, loss.Line, loss.Name))
		}
	}
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
		env, err := parseEnv(f.envText, f.outputPath.String())
		if err != nil {
			return nil, err
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
			hashByDest[f.DestPath] = f.onDisk
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
		if err = t.writeOutputsAndSetEnv(changed); err == nil {
			t.reportEnvLosses(ctx, changed)
		}
	}
	if err == nil {
		t.performChangeActions(ctx, t.addFilesWithLostActions(changed))
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case isEvaluatorUnavailable(err):
		// The task continues with its files.
		if wait.Sleep(ctx, evaluatorRetryDelay) == nil {
			t.watcher.triggerRender()
		}
	default:
		t.killOrRestartAfterRenderError(ctx, err, false)
	}
}

// evaluatorRetryDelay is the time after which templates are evaluated again if the machine could not evaluate them.
const evaluatorRetryDelay = 5 * time.Second

func isEvaluatorUnavailable(err error) bool {
	_, ok := errors.AsType[*evaluators.UnavailableError](err)
	return ok
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
			l, m := c.effectiveWait(&t.settings)
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

// performChangeActions performs the change_mode actions of the changed templates. A restart replaces all other actions. Each signal is
// sent once, and scripts run concurrently. After signals and scripts the outputs count as applied; after a restart request they count
// when the task has started.
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
	t.mu.Lock()
	t.lastRender.err = err
	t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case isPermanent(err):
		t.killTask(ctx, err.Error())
	case !isFirstRender || t.taskHasRun:
		t.restartTaskNowOrAfterStart(ctx, restartRequest{reason: err.Error(), isFailure: true})
	}
}

func (t *taskRenderer) killTask(ctx context.Context, reason string) {
	err := t.hostClient.callUntilAnswered(ctx, func(s hook.Scope) error { return t.hostClient.host.Kill(ctx, s, hook.KillRequest{Reason: reason}) })
	if err != nil && !errors.Is(err, hook.ErrTaskNotRunning) {
		t.emitEvent(ctx, hook.EventFailed, fmt.Sprintf("%s. Killing the task failed: %v", reason, err))
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

// addFilesWithLostActions returns changed and the templates whose output an earlier process of the hook wrote without performing its
// action. While data of one such template are missing, it returns the others again until their action is performed. A file that the task
// has changed does not contain the output, and is not returned.
func (t *taskRenderer) addFilesWithLostActions(changed []*templateFile) []*templateFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.appliedOutputs.mayHaveLostActions {
		return changed
	}
	t.appliedOutputs.mayHaveLostActions = false
	for _, f := range t.templateFiles {
		switch {
		case !t.appliedOutputs.isUnapplied(f.DestPath):
		case len(f.missingSources) > 0:
			t.appliedOutputs.mayHaveLostActions = true // checked again when the data exist
		case f.changeCounts != nil && f.latest.Output == f.onDisk && !slices.Contains(changed, f):
			changed = append(changed, f)
		}
	}
	return changed
}
