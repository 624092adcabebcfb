package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
)

// Meta keys of nomad-lite's lifecycle extensions.
const (
	metaAfter        = "lite_after"
	metaRerun        = "lite_rerun"
	metaRestartGroup = "lite_restart_group"
	metaUsers        = "lite_users"
	metaPrefix       = "lite_"
)

// metaKeys maps each key to the block where it is valid. The keys are not inherited: a value for one task would otherwise apply
// to all tasks.
var metaKeys = map[string]string{metaAfter: "task", metaRerun: "task", metaRestartGroup: "group", metaUsers: "task"}

// UsersSwitchedToByTask returns the users to which a task switches by itself: the names or uids in lite_users, separated by
// commas.
func UsersSwitchedToByTask(t *api.Task) []string { return usersSwitchedToInMeta(t.Meta) }

func usersSwitchedToInMeta(meta map[string]string) (users []string) {
	for name := range strings.SplitSeq(meta[metaUsers], ",") {
		if name = strings.TrimSpace(name); name != "" {
			users = append(users, name)
		}
	}
	return users
}

// TaskDependencies returns the conditions on other tasks in lite_after. The error describes a fault in its text.
func TaskDependencies(t *api.Task) ([]lifecycle.Dependency, error) {
	text, ok := t.Meta[metaAfter]
	if !ok {
		return nil, nil
	}
	return lifecycle.ParseDependencies(text)
}

// checkLiteExtensions checks the meta keys with the prefix lite_.
func checkLiteExtensions(r *faultReport, job *api.Job) {
	where := fmt.Sprintf("job %q", pointer.Value(job.ID))
	checkLiteMetaKeys(r, "job", where, job.Meta)
	for _, g := range job.TaskGroups {
		at, inGroup := r.atPath("group", pointer.Value(g.Name)), fmt.Sprintf("group %q of %s", pointer.Value(g.Name), where)
		checkLiteMetaKeys(at, "group", inGroup, g.Meta)
		for _, t := range g.Tasks {
			checkLiteMetaKeys(at.atPath("task", t.Name), "task", fmt.Sprintf("task %q in %s", t.Name, inGroup), t.Meta)
		}
		e := readExtensions(job, g)
		for _, f := range e.faults {
			if f.task == "" {
				at.atPath("meta", f.key).addFault("%s of %s: %s", f.key, inGroup, f.text)
			} else {
				at.atPath("task", f.task, "meta", f.key).addFault("%s of task %q in %s: %s", f.key, f.task, inGroup, f.text)
			}
		}
	}
}

func checkLiteMetaKeys(r *faultReport, blockType, objectText string, meta map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		home, known := metaKeys[key]
		switch {
		case key == metaUsers && blockType == home && len(usersSwitchedToInMeta(meta)) == 0:
			r.atPath("meta", key).addFault("%s of %s: it names no user: write names or uids, like \"www-data, postgres\"", key, objectText)
		case !strings.HasPrefix(key, metaPrefix), strings.HasPrefix(key, HookPrefix), home == blockType:
		case known:
			r.atPath("meta", key).addFault("%s of %s: it belongs into the meta block of a %s", key, objectText, home)
		default:
			r.atPath("meta", key).addFault("%s of %s: keys that begin with %s switch on extensions, and there are only %s, %s, %s, %s and %sNAME",
				key, objectText, metaPrefix, metaAfter, metaRerun, metaRestartGroup, metaUsers, HookPrefix)
		}
	}
}

// groupLifecycleExtensions are the lifecycle extensions in the meta of a group and its tasks.
type groupLifecycleExtensions struct {
	extensionsUsed bool
	graphTasks     []lifecycle.GraphTask
	restartGroup   lifecycle.RestartGroup
	faults         []metaFault
}

type metaFault struct{ task, key, text string }

func readExtensions(job *api.Job, g *api.TaskGroup) (e groupLifecycleExtensions) {
	if !usesExtensions(g) {
		return e
	}
	e.extensionsUsed = true
	fail := func(task, key string, err error) {
		e.faults = append(e.faults, metaFault{task, key, err.Error()})
	}
	if text, ok := g.Meta[metaRestartGroup]; ok {
		var err error
		if e.restartGroup, err = lifecycle.ParseRestartGroup(text); err != nil {
			fail("", metaRestartGroup, err)
		}
	}
	for _, t := range g.Tasks {
		n := graphTaskOf(job, g, t)
		var err error
		if n.Dependencies, err = TaskDependencies(t); err != nil {
			fail(t.Name, metaAfter, err)
		}
		if text, ok := t.Meta[metaRerun]; ok {
			var err error
			if n.Rerun, err = lifecycle.ParseRerunPolicy(text); err != nil {
				fail(t.Name, metaRerun, err)
			} else if !n.Stage.Ephemeral() {
				fail(t.Name, metaRerun, fmt.Errorf("only a prestart or poststart task that is no sidecar has work to do again, and this is a %v task", n.Stage))
			}
		}
		e.graphTasks = append(e.graphTasks, n)
	}
	if len(e.faults) == 0 {
		for _, p := range lifecycle.CheckGraph(e.graphTasks) {
			e.faults = append(e.faults, metaFault{p.Task, metaAfter, p.Text})
		}
	}
	return e
}

func usesExtensions(g *api.TaskGroup) bool {
	has := func(meta map[string]string, key string) bool { _, ok := meta[key]; return ok }
	return has(g.Meta, metaRestartGroup) || slices.ContainsFunc(g.Tasks, func(t *api.Task) bool {
		return has(t.Meta, metaAfter) || has(t.Meta, metaRerun)
	})
}

// StageOfTask returns a task's stage in its group's lifecycle.
func StageOfTask(t *api.Task) lifecycle.Stage {
	if t.Lifecycle == nil {
		return lifecycle.MainTask
	}
	return lifecycle.StageOf(t.Lifecycle.Hook, t.Lifecycle.Sidecar)
}

func graphTaskOf(job *api.Job, g *api.TaskGroup, t *api.Task) lifecycle.GraphTask {
	n := lifecycle.GraphTask{Task: lifecycle.Task{Name: t.Name, Stage: StageOfTask(t)}, Leader: t.Leader, HasHealthCheck: isHealthChecked(g, t)}
	n.RunsUntilStopped = restart.RestartsOnSuccess(pointer.Value(job.Type), n.Stage)
	return n
}

// isHealthChecked reports whether checks determine the task's health: its own services' checks, or group service checks that name
// it. Checks that deployments ignore do not count.
func isHealthChecked(g *api.TaskGroup, t *api.Task) bool {
	determinesHealth := func(s *api.Service, task string) bool {
		return slices.ContainsFunc(s.Checks, func(c api.ServiceCheck) bool {
			onUpdate := c.OnUpdate
			if onUpdate == "" {
				onUpdate = s.OnUpdate
			}
			return onUpdate != api.OnUpdateIgnore && (task != "" || TaskOfHealthCheck(s, c) == t.Name)
		})
	}
	return slices.ContainsFunc(t.Services, func(s *api.Service) bool { return determinesHealth(s, t.Name) }) ||
		slices.ContainsFunc(g.Services, func(s *api.Service) bool { return determinesHealth(s, "") })
}

// TaskOfHealthCheck returns the task that a group service's check covers, or "" if there is none.
func TaskOfHealthCheck(s *api.Service, c api.ServiceCheck) string {
	if c.TaskName != "" {
		return c.TaskName
	}
	return s.TaskName
}

// LifecycleExtensions returns the lifecycle extensions of a group in a canonical job, or nil if there are none. An error means
// the job is not valid.
func LifecycleExtensions(job *api.Job, g *api.TaskGroup) (*lifecycle.ExtendedGroup, error) {
	e := readExtensions(job, g)
	if len(e.faults) > 0 {
		f := e.faults[0]
		return nil, fmt.Errorf("%s of task %q: %s", f.key, f.task, f.text)
	}
	if !e.extensionsUsed {
		return nil, nil
	}
	tasks := make([]lifecycle.Task, len(e.graphTasks))
	for i, n := range e.graphTasks {
		tasks[i] = n.Task
	}
	return lifecycle.NewGroupIfExtended(tasks, e.restartGroup), nil
}

// DescribeExtendedStartOrder describes to users the start order in a valid job: each group with lifecycle extensions, stage by
// stage. It is empty for a job without extensions.
func DescribeExtendedStartOrder(job *api.Job) string {
	var b strings.Builder
	for _, g := range job.TaskGroups {
		e := readExtensions(job, g)
		if !e.extensionsUsed || len(e.faults) > 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "Gates of group %q\n", pointer.Value(g.Name))
		for _, stage := range []struct {
			name   string
			stages lifecycle.Stage
			opens  string
		}{
			{"prestart", lifecycle.PrestartEphemeral | lifecycle.PrestartSidecar, "first"},
			{"main", lifecycle.MainTask, "when prestart tasks have ended well and prestart sidecars run"},
			{"poststart", lifecycle.PoststartEphemeral | lifecycle.PoststartSidecar, "when all main tasks have started"},
			{"poststop", lifecycle.PoststopTask, "when all other tasks have ended"},
		} {
			writeStageDescription(&b, stage.name, stage.opens, slices.DeleteFunc(slices.Clone(e.graphTasks), func(n lifecycle.GraphTask) bool { return n.Stage&stage.stages == 0 }))
		}
		if e.restartGroup != lifecycle.OneForOne {
			fmt.Fprintf(&b, "  restarts: %v\n", e.restartGroup)
		}
	}
	return b.String()
}

func writeStageDescription(b *strings.Builder, name, opensWhen string, tasks []lifecycle.GraphTask) {
	if len(tasks) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s: %s\n", name, opensWhen)
	for _, n := range tasks {
		fmt.Fprintf(b, "    %s", n.Name)
		if n.Stage.Sidecar() {
			b.WriteString(" (sidecar)")
		}
		var taskNotes []string
		for _, a := range n.Dependencies {
			taskNotes = append(taskNotes, fmt.Sprintf("after %s %s", a.Task, a.Condition.Phrase()))
		}
		if n.Rerun.OnMainTaskRestart {
			taskNotes = append(taskNotes, "again when a main task restarts")
		}
		if n.Rerun.OnReboot {
			taskNotes = append(taskNotes, "again after a reboot")
		}
		if len(taskNotes) > 0 {
			fmt.Fprintf(b, ": %s", strings.Join(taskNotes, ", "))
		}
		b.WriteByte('\n')
	}
}
