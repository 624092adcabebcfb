package pages

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestUIInput uses what a job gets from its users while it runs: actions, the input of a dispatch, the promotion of canaries.
func TestUIInput(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	runUIJobsCases(t, []uiJobsCase{
		{"action runs after a click, and shows its output", (*uiJobsTest).runAction},
		{"dispatched job shows its payload and metadata", (*uiJobsTest).dispatchInput},
		{"canaries of one group are promoted", (*uiJobsTest).promoteGroup},
	})
}

func (u *uiJobsTest) runAction() {
	job := newUIJob("acting", 1)
	job.TaskGroups[0].Tasks[0].Actions = []*api.Action{
		{Name: "greet", Command: "/bin/sh", Args: []string{"-c", "echo run >> \"$NOMAD_TASK_DIR/runs\"; wc -l < \"$NOMAD_TASK_DIR/runs\"; read -r name; echo \"<b>hello $name</b>\"; exit 3"}},
		{Name: "other", Command: "/bin/true"},
	}
	u.register(job)
	u.waitRunning("acting", 1)
	p := u.open("/ui/jobs/acting@default")
	p.WaitText("[aria-label='Actions of tasks'] td", "greet")
	p.WaitText("[aria-label='Actions of tasks'] td", "/bin/true")
	p.ScreenshotIfEnabled("actions")
	p.Click("Run action greet of task main")
	p.WaitText("h1", "Action greet of main")
	p.WaitText("[role=status]", "Run starts the action.")
	p.CheckFitsPhone("action-phone")
	p.Click("Run")
	p.WaitText("[role=status]", "Connected: action greet")
	p.WaitText(".xterm-rows", "1") // the first run
	p.WaitFor(`document.activeElement.classList.contains("xterm-helper-textarea")`)
	typeLine(p, "reader")
	p.WaitText(".xterm-rows", "<b>hello reader</b>")
	p.WaitText("[role=status]", "The action has ended with exit status 3.")
	p.ScreenshotIfEnabled("action")
	p.Click("Run again")
	p.WaitText(".xterm-rows", "2")
	p.Click("Job acting")
	p.WaitText("h1", "acting")
}

func (u *uiJobsTest) dispatchInput() {
	job := api.NewBatchJob("input", "input", api.GlobalRegion, 50)
	job.Meta = map[string]string{"owner": "of the template"}
	job.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "optional", MetaRequired: []string{"who"}, MetaOptional: []string{"api_token", "none"}}
	u.register(job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("main", "exit 0"))))
	open := func(payload string) *systemtest.WebPage {
		u.t.Helper()
		reply, _, err := u.Jobs().Dispatch("input", map[string]string{"who": hostileName, "api_token": "s3cr3t"}, []byte(payload), "", nil)
		if err != nil {
			u.t.Fatal(err)
		}
		return u.open("/ui/jobs/" + reply.DispatchedJobID + "@default")
	}
	p := open("<b>höllo</b>\nworld")
	p.WaitText("pre[aria-label=Payload]", "<b>höllo</b>\nworld")
	p.WaitText("dd code", hostileName)
	if text := systemtest.Eval[string](p, `document.querySelector("main").textContent`); strings.Contains(text, "s3cr3t") || strings.Contains(text, "of the template") {
		u.t.Errorf("the page shows a secret, or metadata of the template:\n%s", text)
	}
	p.Click("Show the value of api_token")
	p.WaitText("dd code", "s3cr3t")
	p.ScreenshotIfEnabled("dispatch-input")
	open("\xff\xfe\x00").WaitText("main", "3 bytes that are no text.")
	open("").WaitText("h2", "Metadata of the dispatch")
}

func (u *uiJobsTest) promoteGroup() {
	job := newUIJob("promoted", 1)
	second := api.NewTaskGroup("worker", 1)
	second.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Millisecond), HealthCheck: new("task_states"), Canary: new(1)}
	job.AddTaskGroup(second.AddTask(systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript)))
	job.TaskGroups[0].Update.Canary = new(1)
	u.register(job)
	u.waitRunning("promoted", 2)
	p := u.open("/ui/jobs/promoted@default")
	p.WaitText("main", "Deployment completed successfully")
	for _, g := range job.TaskGroups {
		g.Tasks[0].Env = map[string]string{"V": "1"}
	}
	u.register(job)
	p.WaitText("h2", "of version 1")
	p.WaitFor(`document.querySelectorAll("[aria-label='Groups of the deployment'] progress[value='1']").length === 2`)
	p.ScreenshotIfEnabled("promote-group")
	p.Click("Promote the canaries of group worker")
	p.WaitFor(`[...document.querySelectorAll("[aria-label='Groups of the deployment'] tbody tr")].map((tr) => tr.dataset.key + " " + tr.children[5].textContent).join() === "web no,worker yes"`)
	d, _, err := u.Jobs().LatestDeployment("promoted", nil)
	if err != nil {
		u.t.Fatal(err)
	}
	if g := d.TaskGroups; !g["worker"].Promoted || g["web"].Promoted {
		u.t.Errorf("promoted: worker %v, web %v", g["worker"].Promoted, g["web"].Promoted)
	}
	p.Click("Promote canaries") // the last group needs no button of its own
	p.WaitText("h2", "successful")
}
