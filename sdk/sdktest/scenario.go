package sdktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// lifecyclePoints are the hook points of an allocation with one task that is restarted
// once, in the order of the calls.
var lifecyclePoints = []hook.Point{
	hook.Prerun, hook.Prestart, hook.Poststart,
	hook.UpdateAlloc, hook.Update,
	hook.PreTaskRestart, hook.PreKilling, hook.Exited,
	hook.Prestart, hook.Poststart,
	hook.ShutdownAlloc, hook.Shutdown,
	hook.PreKill, hook.PreKilling, hook.Exited, hook.Stop,
	hook.Postrun, hook.Destroy,
}

// allocScenario is a simulated allocation with one task, for which the suite calls the hook points of a
// hook.
type allocScenario struct {
	host        *testHost
	description *hook.Description
	requestMeta hook.RequestMeta
	alloc       hook.Alloc
	task        hook.Task
	taskDir     hook.TaskDir
	taskEnv     map[string]string

	isTaskRestored      bool              // requests have the task as running already, as after a restart of the agent
	isPoststartRepeated bool              // Poststart was called before for the same start of the task
	taskExitCount       int               // number of exits of the task
	prestartEnv         map[string]string // variables of the last Prestart
	state               map[string]string // of the last Prestart, or of the last call of StoreState; see previousState
	isPrestartDone      bool
}

// newScenario makes a scenario with a new allocation. The capability token of the scenario
// expires at the end of the case.
func (h *testHost) newScenario(t tb) *allocScenario {
	t.Helper()
	d, err := h.launchOrGetSharedProcess(t).hookClient.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	attachment, err := h.encodeAttachment(d.AttachmentSchema, h.testedPlugin.Attachment)
	if err != nil {
		t.Skipf("the attachment does not fit the schema")
	}
	l := &allocScenario{host: h, description: d, requestMeta: hook.RequestMeta{Token: newUUID(), AttachmentJSON: attachment}}
	h.hookHost.addToken(l.requestMeta.Token)
	t.Cleanup(func() { h.hookHost.expireToken(l.requestMeta.Token) })

	id := newUUID()
	dir := filepath.Join(t.TempDir(), id)
	l.alloc = hook.Alloc{
		ID: id, Name: "suite.group[0]", Namespace: "default", JobID: "suite", JobName: "suite", JobType: "service",
		TaskGroup: "group", NodeID: newUUID(), NodeName: "node", Meta: map[string]string{"owner": "suite"},
	}
	l.task = hook.Task{Name: scenarioTaskName, Driver: "raw_exec", Meta: map[string]string{"owner": "suite"}}
	task := filepath.Join(dir, scenarioTaskName)
	l.taskDir = hook.TaskDir{
		AllocDir: dir, Dir: task, SharedAllocDir: filepath.Join(dir, "alloc"), SharedTaskDir: filepath.Join(task, "alloc"),
		LocalDir: filepath.Join(task, "local"), LogDir: filepath.Join(dir, "alloc/logs"), SecretsDir: filepath.Join(task, "secrets"),
		PrivateDir: filepath.Join(task, "private"),
	}
	for _, sub := range []string{l.taskDir.SharedTaskDir, l.taskDir.LocalDir, l.taskDir.LogDir, l.taskDir.SecretsDir, l.taskDir.PrivateDir} {
		if err := os.MkdirAll(sub, 0o777); err != nil {
			t.Fatalf("%v", err)
		}
	}
	l.taskEnv = map[string]string{
		"NOMAD_ALLOC_ID": id, "NOMAD_TASK_NAME": scenarioTaskName, "NOMAD_ALLOC_DIR": l.taskDir.SharedAllocDir,
		"NOMAD_TASK_DIR": l.taskDir.LocalDir, "NOMAD_SECRETS_DIR": l.taskDir.SecretsDir, "ODD": "two\nlines and $signs",
	}
	if d.IncludeAllocJSON {
		l.alloc.JSON, err = json.Marshal(map[string]any{
			"ID": id, "Name": l.alloc.Name, "Namespace": l.alloc.Namespace, "NodeID": l.alloc.NodeID, "JobID": "suite", "TaskGroup": "group",
			"Job": map[string]any{"ID": "suite", "Name": "suite", "Type": "service", "TaskGroups": []any{
				map[string]any{"Name": "group", "Tasks": []any{map[string]any{"Name": scenarioTaskName, "Driver": "raw_exec"}}},
			}},
		})
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	return l
}

const scenarioTaskName = "task"

// encodeAttachment returns the JSON of an attachment, as a host does, or nil without a
// schema.
func (h *testHost) encodeAttachment(schema *hclspec.Spec, config map[string]any) ([]byte, error) {
	if schema == nil {
		if len(config) > 0 {
			return nil, errors.New("the hook has no schema")
		}
		return nil, nil
	}
	return h.testedPlugin.configEncoder().JSON(schema, config)
}

// hookCallTimeout returns the timeout with which a host calls a hook point.
func hookCallTimeout(p hook.Subscription) time.Duration {
	switch {
	case p.Timeout > 0:
		return p.Timeout
	case p.Point == hook.Prerun, p.Point == hook.Prestart:
		return time.Minute
	}
	return 10 * time.Second
}

// callHookIfSubscribed calls the hook at a hook point to which it subscribes. An error of
// the hook fails the case.
func (s *allocScenario) callHookIfSubscribed(t tb, point hook.Point) {
	t.Helper()
	part, ok := s.description.Subscription(point)
	if !ok {
		return
	}
	process := s.host.launchOrGetSharedProcess(t)
	limit := hookCallTimeout(part)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	switch err := s.callHookPointWithoutDeadline(ctx, t, point); {
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded): // a plugin whose clock is ahead returns DeadlineExceeded before ctx ends
		t.Fatalf("%v: no answer within %v", point, limit)
	case errors.Is(err, hook.ErrPluginDown):
		t.Fatalf("%v: %s", point, process.crashReport())
	case err != nil:
		t.Fatalf("%v: %v", point, err)
	}
}

// callHookPointWithoutDeadline calls the hook at a hook point, and returns its error. It adds no timeout to ctx.
func (s *allocScenario) callHookPointWithoutDeadline(ctx context.Context, t tb, point hook.Point) (err error) {
	t.Helper()
	c := s.host.launchOrGetSharedProcess(t).hookClient
	g, a, task := s.requestMeta, s.alloc, s.task
	switch point {
	case hook.Prerun:
		_, err = c.Prerun(ctx, hook.AllocPrerunRequest{RequestMeta: g, Alloc: a, Env: s.taskEnv})
	case hook.UpdateAlloc:
		_, err = c.UpdateAlloc(ctx, hook.AllocUpdateRequest{RequestMeta: g, Alloc: a, Env: s.taskEnv})
	case hook.PreTaskRestart:
		_, err = c.PreTaskRestart(ctx, hook.AllocPreTaskRestartRequest{RequestMeta: g, Alloc: a})
	case hook.PreKill:
		_, err = c.PreKill(ctx, hook.AllocPreKillRequest{RequestMeta: g, Alloc: a})
	case hook.Postrun:
		_, err = c.Postrun(ctx, hook.AllocPostrunRequest{RequestMeta: g, Alloc: a})
	case hook.Destroy:
		_, err = c.Destroy(ctx, hook.AllocDestroyRequest{RequestMeta: g, Alloc: a})
	case hook.ShutdownAlloc:
		_, err = c.ShutdownAlloc(ctx, hook.AllocShutdownRequest{RequestMeta: g, Alloc: a})
	case hook.Prestart:
		err = s.callPrestart(ctx, c)
	case hook.Poststart:
		_, err = c.Poststart(ctx, hook.TaskPoststartRequest{RequestMeta: g, Alloc: a, Task: task, Dir: s.taskDir, Env: s.envWithHookVars(),
			StartID: s.startID(), PreviousState: s.previousState(), Repeated: s.isPoststartRepeated})
	case hook.Update:
		_, err = c.Update(ctx, hook.TaskUpdateRequest{RequestMeta: g, Alloc: a, Task: task, Env: s.envWithHookVars()})
	case hook.PreKilling:
		_, err = c.PreKilling(ctx, hook.TaskPreKillingRequest{RequestMeta: g, Alloc: a, Task: task, StartID: s.startID(), PreviousState: s.previousState()})
	case hook.Exited:
		startID := s.startID()
		s.taskExitCount++
		exit := driver.ExitResult{ExitCode: 137, Signal: 9}
		_, err = c.Exited(ctx, hook.TaskExitedRequest{RequestMeta: g, Alloc: a, Task: task, StartID: startID, Exit: exit, PreviousState: s.previousState(), WillRestart: s.taskExitCount == 1})
	case hook.Stop:
		_, err = c.Stop(ctx, hook.TaskStopRequest{RequestMeta: g, Alloc: a, Task: task, Dir: s.taskDir, PreviousState: s.previousState()})
	case hook.Shutdown:
		_, err = c.Shutdown(ctx, hook.TaskShutdownRequest{RequestMeta: g, Alloc: a, Task: task})
	default:
		err = fmt.Errorf("the suite does not know the hook point %v", point)
	}
	return err
}

// startID returns the id of the current start of the task.
func (s *allocScenario) startID() string {
	return fmt.Sprintf("%s/%s/%d", s.alloc.ID, s.task.Name, s.taskExitCount)
}

// envWithHookVars returns the environment of the task with the variables of the last Prestart.
func (s *allocScenario) envWithHookVars() map[string]string {
	env := maps.Clone(s.taskEnv)
	maps.Copy(env, s.prestartEnv)
	return env
}

// previousState returns the state that the hook has stored last.
func (s *allocScenario) previousState() map[string]string {
	if stored, ok := s.host.hookHost.takeStoredState(s.requestMeta.Token); ok {
		s.state = stored
	}
	return maps.Clone(s.state)
}

// callPrestart calls Prestart with the state that the hook has stored last, and keeps the response as an agent does. It does
// nothing after a Prestart that returned Done.
func (s *allocScenario) callPrestart(ctx context.Context, c *hookwire.Client) error {
	if s.isPrestartDone {
		return nil
	}
	previous := s.previousState()
	answer, err := c.Prestart(ctx, hook.TaskPrestartRequest{
		RequestMeta: s.requestMeta, Alloc: s.alloc, Task: s.task, Dir: s.taskDir, Env: s.envWithHookVars(),
		Resources:     driver.Resources{CPUShares: 100, MemoryMB: 64, Ports: []driver.PortMapping{{Label: "http", Value: 20000, To: 80, HostIP: "127.0.0.1"}}},
		PreviousState: previous, Running: s.isTaskRestored,
	})
	if ctx.Err() != nil {
		return err
	}
	stored := s.previousState()
	if (err == nil || answer.State != nil) && !maps.Equal(previous, answer.State) {
		stored = answer.State
	}
	s.state = stored
	if err != nil {
		return err
	}
	s.isPrestartDone, s.prestartEnv = answer.Done, answer.Env
	return answer.Validate()
}
