package pluginhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

// A job must not be able to attach the builtin hook artifact by a meta key, because the
// key could replace the operator's limits.
func TestOnlyBlocksAttachBuiltinHooks(t *testing.T) {
	plugins := New(Config{
		LaunchedHooksByName:      func() map[string]*hook.Description { return map[string]*hook.Description{"artifact": {}, "mine": {}} },
		UnlaunchedAllAllocsHooks: func() []string { return nil },
		Rules:                    []OperatorRule{{Name: "artifact", Order: 450}},
		LimitsByBuiltinHook:      map[string]map[string]any{"artifact": {"http_max_size": 1}},
		Logger:                   hclog.NewNullLogger(),
	})
	meta := map[string]string{"lite_hook_artifact": `{"artifacts": [], "limits": {}}`, "lite_hook_mine": ""}
	source := "http://x/y"
	plain := &api.Task{Name: "plain", Driver: "d", Meta: meta}
	task := &api.Task{Name: "t", Driver: "d", Meta: meta, Artifacts: []*api.TaskArtifact{{GetterSource: &source}}}
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{plain, task}}
	alloc := &api.Allocation{TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{group}}}

	if list := plugins.NewTaskHooks(alloc, plain, hooks.AttachTarget{}); len(list) != 1 || list[0].Hook.Name() != "mine" {
		t.Errorf("a task without blocks has %v, want the hook mine", list)
	}
	list := plugins.NewTaskHooks(alloc, task, hooks.AttachTarget{})
	if len(list) != 2 || list[1].Hook.Name() != "artifact" {
		t.Fatalf("a task with blocks has %v, want the hooks mine and artifact", list)
	}
	var receivedConfig struct {
		Artifacts []api.TaskArtifact
		Limits    map[string]int
	}
	if err := json.Unmarshal(list[1].Hook.(*Hook).attachment.builtinBlocksJSON, &receivedConfig); err != nil {
		t.Fatal(err)
	}
	if len(receivedConfig.Artifacts) != 1 || *receivedConfig.Artifacts[0].GetterSource != source || receivedConfig.Limits["http_max_size"] != 1 {
		t.Errorf("the hook is told %+v, want the blocks with the limits of the operator", receivedConfig)
	}
	if CheckNotBuiltinBlockHook("artifact") == nil || CheckNotBuiltinBlockHook("mine") != nil {
		t.Error("meta may attach mine, and not artifact")
	}
}

// A task's attachment must not configure a hook point that is never called for a task.
func TestCheckTaskAttachment(t *testing.T) {
	const refusedText = ": comes for the allocation, and never for one of its tasks: put it into the meta of the group or the job"
	both := []hook.Point{hook.Prerun, hook.Postrun, hook.Exited}
	for _, c := range []struct {
		name   string
		points []hook.Point
		config string
		want   string // want is the error's prefix
	}{
		{"mine", []hook.Point{hook.Prerun, hook.Postrun}, "", "prerun, postrun"},
		{"mine", []hook.Point{hook.Exited}, "", ""},
		{"mine", both, `{"postrun": {}}`, ""}, // a hook other than script can give the key postrun any meaning
		{"script", both, `{"postrun": {}, "exited": {}}`, "postrun"},
		{"script", both, `{"exited": {}, "postrun": null}`, ""},
		{"script", both, "", ""},
	} {
		err := CheckTaskAttachmentPoints(c.name, c.config, descriptionOfPoints(c.points...))
		if want := c.want + refusedText; c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s at %v with %s: %v, want %q", c.name, c.points, c.config, err, c.want)
		}
	}
}

// A plugin for every allocation that starts slowly with the agent must not miss the allocations started before it is up.
func TestExpectedHookIsAttached(t *testing.T) {
	every := descriptionOfPoints(hook.Prerun)
	every.AllAllocs = true
	s := &pluginFixture{description: every, expectedHooks: []string{"stamp"}, onCall: func(int, hook.Point, hook.RequestMeta, hook.Alloc) error { return nil }}
	alloc := &api.Allocation{ID: "a", JobID: "web", TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}}}}}
	for what, c := range map[string]struct {
		rules []OperatorRule
		want  string
		calls int64
	}{
		"nobody says anything":          {nil, "stamp@300", 1},
		"the operator says when":        {[]OperatorRule{{Name: "stamp", Order: 200}}, "stamp@200", 1},
		"the operator wants it for db":  {[]OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "db"}}}, "", 0},
		"the operator wants it for web": {[]OperatorRule{{Name: "stamp", Match: &RuleMatch{JobPattern: "web"}}}, "stamp@300", 1},
	} {
		s.callCount.Store(0)
		plugins := s.newSet(c.rules...)
		plugins.config.LaunchedHooksByName = func() map[string]*hook.Description { return nil }
		list := plugins.NewAllocHooks(alloc, s.target(""))
		if got := formatEntries(list); got != c.want {
			t.Errorf("%s: attached %q, want %q", what, got, c.want)
		}
		for _, o := range list {
			if err := callPrerun(t.Context(), o.Hook.(*Hook)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if calls := s.callCount.Load(); calls != c.calls {
			t.Errorf("%s: %d calls, want %d", what, calls, c.calls)
		}
	}
}

// A hook that took part in an allocation's start is called at its end, even if the rules have changed.
func TestDetachedHookIsCalledForCleanup(t *testing.T) {
	alloc := &api.Allocation{ID: "a", JobID: "web", TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}}}}}
	all := descriptionOfPoints(slices.Collect(hook.AllPoints())...)
	all.ReportsHealth = true
	all.AttachmentSchema = hclspec.Object(map[string]*hclspec.Spec{"pool": hclspec.Attr("pool", "string", true)})
	var calledPoints []string
	s := &pluginFixture{description: all, onCall: func(_ int, m hook.Point, g hook.RequestMeta, _ hook.Alloc) error {
		calledPoints = append(calledPoints, m.String()+" "+string(g.AttachmentJSON))
		return nil
	}}
	first := s.newSet(OperatorRule{Name: "stamp", Match: &RuleMatch{}, Config: map[string]any{"pool": "a"}})
	of := s.target("t")
	list := first.NewAllocHooks(alloc, of)
	of.PreviousAttachmentJSONByHook = map[string]string{"stamp": list[0].Hook.(*Hook).AttachmentJSON(), "gone": "{}", "artifact": "{}"}

	// A hook that is still attached is listed once, with the current rule.
	again := s.newSet(OperatorRule{Name: "stamp", Match: &RuleMatch{}, Config: map[string]any{"pool": "b"}}).NewAllocHooks(alloc, of)
	if got := formatEntries(again); got != "stamp@300 gone@300" || again[0].Hook.(*Hook).cleanupOnly || again[0].Hook.(*Hook).AttachmentJSON() != `{"pool":"b"}` {
		t.Errorf("attached still: %s, %+v", got, again[0].Hook)
	}

	next := s.newSet(OperatorRule{Name: "stamp", Match: &RuleMatch{JobPattern: "db"}})
	next.config.FindOrLaunchHook = func(ctx context.Context, name string, until time.Time) (RemoteHook, *hook.Description, error) {
		if name == "gone" {
			return nil, nil, supervisor.ErrNoHook
		}
		return first.config.FindOrLaunchHook(ctx, name, until)
	}
	for _, o := range next.NewTaskHooks(alloc, &api.Task{Name: "t"}, of) {
		p := o.Hook.(*Hook)
		if p.ReportsHealth() {
			t.Errorf("%s decides about the health of what it has nothing to do with any more", p.Name())
		}
		state := map[string]string{"old": "x"}
		answer, err := p.Prestart(t.Context(), hook.TaskPrestartRequest{PreviousState: state})
		if err != nil || !maps.Equal(answer.State, state) {
			t.Errorf("prestart of %s: %v, %v", p.Name(), answer, err)
		}
		err = errors.Join(discardResult(p.Prerun(t.Context(), hook.AllocPrerunRequest{})), discardResult(p.Postrun(t.Context(), hook.AllocPostrunRequest{})), discardResult(p.Stop(t.Context(), hook.TaskStopRequest{})), discardResult(p.Destroy(t.Context(), hook.AllocDestroyRequest{})))
		if err != nil {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
	if got, want := fmt.Sprint(calledPoints), `[postrun {"pool":"a"} stop {"pool":"a"} destroy {"pool":"a"}]`; got != want {
		t.Errorf("called %s, want %s", got, want)
	}
	if len(s.events)+len(s.cleanups) > 0 {
		t.Errorf("events %q, pending %v", s.events, s.cleanups)
	}
}

// The innermost key is used as a whole: the group's key for the allocation, the task's
// key for a task.
func TestNearestAttachmentIsUsed(t *testing.T) {
	s := &pluginFixture{description: allPointsDescription}
	keys := func(text string) map[string]string {
		if text == "" {
			return nil
		}
		return map[string]string{"lite_hook_stamp": text}
	}
	for _, c := range []struct{ job, group, task, ofAlloc, ofTask string }{
		{`{"job":1}`, "", "", `{"job":1}`, `{"job":1}`},
		{`{"job":1}`, `{"group":1}`, "", `{"group":1}`, `{"group":1}`},
		{`{"job":1}`, `{"group":1}`, `{"task":1}`, `{"group":1}`, `{"task":1}`},
		{`{"job":1}`, "", "{}", `{"job":1}`, "{}"},
		{"", "", `{"task":1}`, "", `{"task":1}`},
	} {
		task := &api.Task{Name: "t", Meta: keys(c.task)}
		alloc := &api.Allocation{TaskGroup: "g", Job: &api.Job{Meta: keys(c.job), TaskGroups: []*api.TaskGroup{{Name: new("g"), Meta: keys(c.group), Tasks: []*api.Task{task}}}}}
		for what, list := range map[string][]hooks.OrderedHook{c.ofAlloc: s.newSet().NewAllocHooks(alloc, hooks.AttachTarget{}), c.ofTask: s.newSet().NewTaskHooks(alloc, task, hooks.AttachTarget{})} {
			got := ""
			for _, o := range list {
				got += o.Hook.(*Hook).AttachmentJSON()
			}
			if got != what {
				t.Errorf("%+v: attached with %s, want %s", c, got, what)
			}
		}
	}
}

func TestHealthIsReportedForTasksOrTheAllocation(t *testing.T) {
	alloc := &api.Allocation{ID: "a", JobID: "web", TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}}}}}
	for _, c := range []struct {
		point           hook.Point
		ofAlloc, ofTask bool
	}{{hook.Poststart, false, true}, {hook.Prerun, true, false}} {
		d := descriptionOfPoints(c.point)
		d.ReportsHealth = true
		set := (&pluginFixture{description: d}).newSet(OperatorRule{Name: "stamp", Match: &RuleMatch{}})
		reports := func(list []hooks.OrderedHook) bool { return len(list) == 1 && list[0].Hook.ReportsHealth() }
		f := &pluginFixture{description: d}
		ofAlloc, ofTask := reports(set.NewAllocHooks(alloc, f.target(""))), reports(set.NewTaskHooks(alloc, &api.Task{Name: "t"}, f.target("t")))
		if ofAlloc != c.ofAlloc || ofTask != c.ofTask {
			t.Errorf("hook of %v: must report for the allocation %v, for the task %v; want %v, %v", c.point, ofAlloc, ofTask, c.ofAlloc, c.ofTask)
		}
	}
}

// The forms in docs/reference/hooks.md for a schema's blocks.
func TestNestedBlocksOfAnAttachment(t *testing.T) {
	path := hclspec.Object(map[string]*hclspec.Spec{"path": hclspec.Default(hclspec.Attr("path", "string", false), hclspec.Literal(`"/"`))})
	schema := hclspec.Object(map[string]*hclspec.Spec{
		"http":   hclspec.Block("http", path, false),
		"check":  hclspec.BlockList("check", path, 0, 0),
		"labels": hclspec.BlockAttrs("labels", "string", false),
		"site":   hclspec.BlockMap("site", []string{"name"}, path),
	})
	for _, c := range []struct{ attachment, want string }{
		{`{}`, `{"check":[],"http":null,"labels":null,"site":{}}`},
		{`{"http": {}}`, `{"check":[],"http":{"path":"/"},"labels":null,"site":{}}`},
		{`{"http": {"path": "/a"}, "check": [{"path": "/b"}, {}]}`, `{"check":[{"path":"/b"},{"path":"/"}],"http":{"path":"/a"},"labels":null,"site":{}}`},
		{`{"check": {"path": "/b"}}`, `{"check":[{"path":"/b"}],"http":null,"labels":null,"site":{}}`},
		{`{"labels": {"a": "b"}, "site": {"one": {"path": "/1"}, "two": {}}}`, `{"check":[],"http":null,"labels":{"a":"b"},"site":{"one":{"path":"/1"},"two":{"path":"/"}}}`},
	} {
		got, err := attachment{jobAttachmentJSON: c.attachment}.encodeForPlugin(schema, nil)
		if err != nil || string(got) != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.attachment, got, err, c.want)
		}
	}
	if _, err := (attachment{jobAttachmentJSON: `{"http": [{}, {}]}`}).encodeForPlugin(schema, nil); err == nil {
		t.Error("two blocks where one is allowed are accepted")
	}
}
