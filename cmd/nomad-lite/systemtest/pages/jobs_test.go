package pages

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestUIJobs uses the pages of jobs and evaluations, and the search, as a person does. The subtests share an agent
// and a browser, and each has jobs of its own.
func TestUIJobs(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	runUIJobsCases(t, []uiJobsCase{
		{"list follows changes and keeps the focus", (*uiJobsTest).list},
		{"editor shows errors at their place, plans and runs", (*uiJobsTest).edit},
		{"ports keep their digits together, and ended allocations have a table of their own", (*uiJobsTest).portsAndEnded},
		{"job is scaled, restarted, stopped, started and purged", (*uiJobsTest).actions},
		{"deployment is promoted, paused and failed", (*uiJobsTest).deployment},
		{"versions are compared, tagged and reverted to", (*uiJobsTest).versions},
		{"parameterized job is dispatched", (*uiJobsTest).dispatch},
		{"periodic job is launched", (*uiJobsTest).periodic},
		{"placement failures are explained", (*uiJobsTest).placement},
		{"services are listed", (*uiJobsTest).services},
		{"addresses that Nomad's commands print", (*uiJobsTest).printedAddresses},
		{"search finds everything by keyboard", (*uiJobsTest).search},
		{"hidden tab holds no connection", (*uiJobsTest).hiddenTab},
		{"expired token keeps the draft", (*uiJobsTest).expiredToken},
		{"lost connection is reported and restored", (*uiJobsTest).lostConnection},
	})
}

// uiJobsCase is a subtest of runUIJobsCases.
type uiJobsCase struct {
	name string
	run  func(*uiJobsTest)
}

// runUIJobsCases runs the cases in parallel, with one agent and one browser for all.
func runUIJobsCases(t *testing.T, cases []uiJobsCase) {
	t.Helper()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			agent := *s
			agent.T = t
			c.run(&uiJobsTest{TestAgent: &agent, t: t, browser: b.ForSubtest(t)})
		})
	}
}

type uiJobsTest struct {
	*systemtest.TestAgent
	t       *testing.T
	browser *systemtest.Browser
}

func (u *uiJobsTest) open(path string) *systemtest.WebPage {
	u.t.Helper()
	return u.browser.OpenTab(u.Address, path)
}

// register registers a job, and returns it.
func (u *uiJobsTest) register(job *api.Job) *api.Job {
	u.t.Helper()
	if _, _, err := u.Jobs().Register(job, nil); err != nil {
		u.t.Fatal(err)
	}
	return job
}

// newUIJob returns a service job whose group "web" has tasks that run until they are stopped.
func newUIJob(id string, count int) *api.Job {
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	group := api.NewTaskGroup("web", count)
	group.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Millisecond), HealthCheck: new("task_states")}
	return job.AddTaskGroup(group.AddTask(systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript)))
}

// waitJob waits until a job of the agent fulfils a condition.
func (u *uiJobsTest) waitJob(id string, is func(*api.Job) bool) {
	u.t.Helper()
	u.WaitUntil(id, func() (string, bool) {
		job, _, err := u.Jobs().Info(id, nil)
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%+v", job), is(job)
	})
}

func (u *uiJobsTest) waitRunning(id string, count int) {
	u.t.Helper()
	u.WaitUntil(id+" runs", func() (string, bool) {
		allocs, _, err := u.Jobs().Allocations(id, false, nil)
		running := 0
		for _, a := range allocs {
			if a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun {
				running++
			}
		}
		return fmt.Sprint(running, err), running == count
	})
}

func (u *uiJobsTest) list() {
	u.register(newUIJob("list-a", 2))
	p := u.open("/ui/jobs?text=list-")
	p.WaitText("tr[data-key='default/list-a']", "2 running")
	systemtest.Eval[chromedp.Void](p, `document.querySelector("tr[data-key='default/list-a'] a").focus(); window.row = document.activeElement.closest("tr")`)
	hostile := newUIJob("list-hostile", 1)
	hostile.Name = new(hostileName)
	u.register(hostile)
	p.WaitText("tr[data-key='default/list-hostile']", hostileName)
	if !systemtest.Eval[bool](p, `window.row.contains(document.activeElement) && window.row.isConnected`) {
		u.t.Error("the focus was lost when the list changed")
	}
	if _, _, err := u.Jobs().Deregister("list-hostile", false, nil); err != nil {
		u.t.Fatal(err)
	}
	p.WaitText("tr[data-key='default/list-hostile']", "stopped")
	p.ScreenshotIfEnabled("jobs")
	p.SelectOption("select[aria-label=Health]", "stopped")
	p.WaitFor(`document.querySelectorAll("tbody tr").length === 1 && location.search.includes("status=stopped")`)
	p.OpenPath("/ui/jobs?text=list-&status=stopped")
	p.WaitText("tr[data-key='default/list-hostile']", hostileName)
	p.OpenPath("/ui/jobs?text=list-")
	p.WaitText("tr[data-key='default/list-a']", "list-a")
	p.Click("Name")
	p.Click("Name")
	p.WaitFor(`document.querySelector("th[aria-sort=descending]") && document.querySelector("tbody tr").textContent.includes("hostile")`)
	p.CheckFitsPhone("jobs-narrow")
}

const uiJobText = `# comment of the author
job "edited" {
  group "web" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = [var.seconds]
      }
      env {
        A = "<b>1</b>\u202e"
      }
      resources {
        cpu    = 1
        memory = 10
      }
    }
  }
}
variable "seconds" { default = "1000" }
`

func (u *uiJobsTest) edit() {
	p := u.open("/ui/jobs/run")
	p.AllowError("/v1/jobs/parse") // the status 400 of the text with an error
	p.EnterText("#specification", "job \"x\" {\n\tgroup \"g\" {}\nfoo = 1\n")
	if got := systemtest.Eval[string](p, `document.querySelector("#specification").value`); got != "job \"x\" {\n  group \"g\" {}\n  foo = 1\n  " {
		u.t.Errorf("the Tab key and automatic indentation: %q", got)
	}
	p.PressKeys("}")
	p.Click("Plan")
	p.WaitText("main [role=alert]", `An argument named "foo" is not expected here.`)
	p.WaitText("main [role=alert] button", "Line 3, column 3")
	p.WaitText(".numbers mark", "3")
	p.ScreenshotIfEnabled("run-error")
	if got := systemtest.Eval[string](p, `(() => { const e = document.activeElement; return e.value.slice(e.selectionStart, e.selectionEnd) })()`); got != "foo" {
		u.t.Errorf("%q is selected", got)
	}
	p.PressKeys("\x1b\t")
	p.WaitFor(`document.activeElement.tagName === "SUMMARY"`) // Escape, Tab leaves the editor
	systemtest.Eval[chromedp.Void](p, fmt.Sprintf(`{
		const opened = new DataTransfer();
		opened.items.add(new File([%q], "edited.nomad.hcl"));
		const e = document.querySelector("input[type=file]");
		e.files = opened.files;
		e.dispatchEvent(new Event("change"));
	}`, uiJobText))
	p.WaitFor(`document.querySelector("#specification").value.startsWith("# comment")`)
	p.WaitFor(`!document.querySelector(".numbers mark")`)
	p.WaitText(".colours .hcl-block", "group")
	p.WaitText(".colours .hcl-string", `"edited"`)
	p.Click("Values of HCL variables")
	p.EnterText("#variables", `seconds = "2000"`)
	p.Click("Plan")
	p.WaitText("h2", "Plan of job edited")
	p.WaitText("main", "This is a new job.")
	p.WaitText("main li", "Group “web”: start 1")
	p.WaitText(".diff .added", `Env[A]: "<b>1</b>\u202e"`)
	p.WaitText(".diff .added .hidden-text", "added")
	p.SetViewportSize(1280, 800)
	// The plan is beside the text, and its button is in view.
	p.WaitFor(`document.querySelector(".diff, .plan-result details").getBoundingClientRect().left > document.querySelector("#specification").getBoundingClientRect().right`)
	p.WaitFor(`[...document.querySelectorAll(".plan-result button")].find((e) => e.textContent === "Run").getBoundingClientRect().bottom < innerHeight`)
	p.ScreenshotIfEnabled("run-plan")
	p.CheckFitsPhone("run-narrow")
	p.Click("Run")
	p.WaitFor(`location.pathname === "/ui/jobs/edited@default"`)
	p.WaitText("h1", "edited")
	p.WaitText("td", "running")
	p.Click("Definition")
	p.WaitText("pre", "# comment of the author")
	p.WaitText("pre", `seconds = "2000"`)
	p.ScreenshotIfEnabled("definition")
	p.Click("Edit")
	p.WaitFor(`document.querySelector("#specification")?.value.startsWith("# comment") && document.querySelector("#variables").value.includes("2000")`)
	u.changeMeta("edited")
	systemtest.Eval[chromedp.Void](p, `{ const e = document.querySelector("#specification"); e.value = e.value.replace("memory = 10", "memory = 99999999"); e.dispatchEvent(new Event("input")) }`)
	p.Click("Plan")
	p.WaitText(".diff .changed", `MemoryMB: "10" → "99999999"`)
	p.WaitText(".notice", "Not enough is left on this node: memory.")
	u.changeMeta("edited")
	p.AllowError("/v1/jobs") // the job has changed since the plan
	p.Click("Run")
	p.WaitText("main [role=alert]", "The job was changed since the plan")
	p.ScreenshotIfEnabled("run-conflict")
	p.Click("Plan again")
	p.WaitText(".diff .removed", `Meta[changed]: "1"`)
	p.Click("Run")
	p.WaitFor(`location.pathname === "/ui/jobs/edited@default"`)
	u.waitJob("edited", func(job *api.Job) bool { return job.Meta["changed"] == "" })
}

// changeMeta changes a job while a page shows it.
func (u *uiJobsTest) changeMeta(id string) {
	u.t.Helper()
	job, _, err := u.Jobs().Info(id, nil)
	if err != nil {
		u.t.Fatal(err)
	}
	job.Meta = map[string]string{"changed": fmt.Sprint(*job.Version)}
	u.register(job)
}

func (u *uiJobsTest) portsAndEnded() {
	job := newUIJob("ports-"+strings.Repeat("x", 60), 1)
	group := job.TaskGroups[0]
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}, {Label: "metrics"}}}}
	group.ReschedulePolicy = &api.ReschedulePolicy{Delay: new(5 * time.Second), DelayFunction: new("constant"), Interval: new(time.Duration(0)), Unlimited: new(true)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Interval: new(time.Hour), Mode: new("fail")}
	marker := filepath.Join(u.t.TempDir(), "failed")
	group.Tasks[0].Config["args"] = []string{"-c", fmt.Sprintf("[ -e %s ] || { touch %[1]s; exit 3; }; %s", marker, systemtest.SleepForeverScript)}
	u.register(job)
	u.waitRunning(*job.ID, 1)
	p := u.open("/ui/jobs?text=ports-")
	p.WaitFor(`document.querySelectorAll(".ports a").length === 2`)
	for width := int64(300); width <= 1600; width += 50 {
		p.SetViewportSize(width, 800)
		p.WaitFor(fmt.Sprintf("innerWidth === %d", width))
		if broken := systemtest.Eval[string](p, `[...document.querySelectorAll(".ports a")].flatMap((a) => {
			const texts = document.createTreeWalker(a, NodeFilter.SHOW_TEXT), broken = [];
			while (texts.nextNode()) {
				for (const word of texts.currentNode.data.matchAll(/\w+/g)) {
					const range = document.createRange();
					range.setStart(texts.currentNode, word.index);
					range.setEnd(texts.currentNode, word.index + word[0].length);
					if (range.getClientRects().length !== 1) broken.push(word[0]);
				}
			}
			return broken;
		}).join()`); broken != "" {
			u.t.Errorf("width %d: the labels and ports %s are broken into lines", width, broken)
		}
	}
	p.SetViewportSize(1280, 900)
	p.OpenPath("/ui/jobs/" + *job.ID + "@default")
	p.WaitText("h2", "Current allocations")
	statuses := func(label string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("[aria-label='%s'] tbody tr")].map((tr) => tr.children[2].textContent).join()`, label)
	}
	p.WaitFor(statuses("Allocations") + ` === "running"`)
	p.WaitFor(statuses("Ended allocations") + ` === "failed"`)
	p.WaitText("h2", "Ended allocations")
}

func (u *uiJobsTest) actions() {
	u.register(newUIJob("acted", 1))
	u.waitRunning("acted", 1)
	p := u.open("/ui/jobs/acted@default")
	p.WaitText("tr", "Task started by client")
	p.ScreenshotIfEnabled("job")
	p.Click("Scale")
	p.EnterText("dialog input[name=count]", "2")
	p.Click("Scale")
	p.WaitFor(`!document.querySelector("dialog")`)
	u.waitRunning("acted", 2)
	p.WaitFor(`document.querySelectorAll("[aria-label=Allocations] tbody .status-running").length === 2`)
	p.Click("Restart allocations…")
	p.ScreenshotIfEnabled("job-restart")
	p.Click("Restart")
	p.WaitFor(`!document.querySelector("dialog") && [...document.querySelectorAll("[aria-label=Allocations] tbody tr")].filter((tr) => tr.children[5].textContent === "1").length === 2`)
	p.CheckFitsPhone("job-narrow")
	p.Click("Stop…")
	p.Click("Cancel")
	p.WaitFor(`!document.querySelector("dialog")`)
	p.Click("Stop…")
	p.Click("Stop")
	p.WaitText("h1 + span", "stopped")
	p.AllowError("/v1/job/acted/submission") // the status 404 of a job that was submitted as JSON
	p.Click("Start again…")
	p.Click("Start again")
	u.waitRunning("acted", 2)
	p.WaitText("h1 + span", "running")
	p.Click("Stop…")
	p.AllowError("/v1/job/acted") // the status 404 of the purged job
	p.RunSteps("select purge", chromedp.Click(chromedp.CSS("dialog input[name=purge]")))
	p.Click("Stop")
	p.WaitFor(`location.pathname === "/ui/jobs" && !document.querySelector("dialog")`)
	p.OpenPath("/ui/jobs/acted@default")
	p.WaitText("h1", "There is no job acted in namespace default")
}

func (u *uiJobsTest) deployment() {
	job := newUIJob("deployed", 1)
	job.TaskGroups[0].Update.Canary = new(1)
	u.register(job)
	u.waitRunning("deployed", 1)
	p := u.open("/ui/jobs/deployed@default")
	p.WaitText("main", "Deployment completed successfully")
	newVersion := func(value string) {
		job.TaskGroups[0].Tasks[0].Env = map[string]string{"V": value}
		u.register(job)
	}
	newVersion("1")
	p.WaitText("section", "requires manual promotion")
	p.WaitText("section td", "1 of 1")
	p.ScreenshotIfEnabled("deployment")
	p.Click("Pause")
	p.WaitText("h2", "paused")
	p.Click("Resume")
	p.WaitText("h2", "running")
	p.Click("Promote canaries")
	p.WaitText("h2", "successful")
	newVersion("2")
	p.Click("Fail…")
	p.Click("Fail deployment")
	p.WaitText("h2", "failed")
	p.Click("Deployments")
	p.WaitFor(`document.querySelectorAll("main section:not(.notice)").length === 3`)
	p.ScreenshotIfEnabled("deployments")
}

func (u *uiJobsTest) versions() {
	job := u.register(newUIJob("versioned", 1))
	u.waitRunning("versioned", 1)
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"NEW": "value"}
	u.register(job)
	p := u.open("/ui/jobs/versioned@default/versions")
	p.WaitText("section", `Env[NEW]: "value"`)
	p.Click("Tag version 0")
	p.EnterText("dialog input[name=name]", hostileName)
	p.Click("Tag")
	p.WaitText("h2", hostileName)
	p.ScreenshotIfEnabled("versions")
	p.Click("Remove tag")
	p.WaitFor(`!document.querySelector("main").textContent.includes("onerror")`)
	p.Click("Revert to version 0")
	p.Click("Revert")
	p.WaitText("h2", "Version 2 (current)")
	p.WaitText("section[data-key='2'] .removed", `Env[NEW]: "value"`)
	p.SelectOption("#base", "0")
	p.WaitText("section[data-key='2']", "Nothing changes.")
	p.AllowError("/v1/job/versioned/submission") // the status 404 of a job that was submitted as JSON
	p.OpenPath("/ui/jobs/run?job=versioned&version=1")
	p.WaitFor(`document.querySelector("#specification")?.value.includes('"NEW": "value"')`)
	p.Click("Plan")
	p.WaitText(".diff .added", `Env[NEW]: "value"`)
	u.waitJob("versioned", func(job *api.Job) bool { return *job.Version == 2 && job.TaskGroups[0].Tasks[0].Env["NEW"] == "" })
}

func (u *uiJobsTest) dispatch() {
	job := api.NewBatchJob("template", "template", api.GlobalRegion, 50)
	job.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaRequired: []string{"who"}, MetaOptional: []string{"how"}}
	task := systemtest.NewRawExecShellTask("main", `cat "$NOMAD_TASK_DIR/input"; echo " $NOMAD_META_who"`)
	task.DispatchPayload = &api.DispatchPayloadConfig{File: "input"}
	u.register(job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task)))
	p := u.open("/ui/jobs/template@default/dispatch")
	p.EnterText("dialog input[name='meta.who']", "world")
	p.EnterText("dialog textarea", "höllo")
	p.ScreenshotIfEnabled("dispatch")
	p.Click("Dispatch")
	p.WaitFor(`decodeURIComponent(location.pathname).startsWith("/ui/jobs/template/dispatch-")`)
	p.WaitText("td", "complete")
	child := strings.TrimSuffix(strings.TrimPrefix(systemtest.Eval[string](p, `decodeURIComponent(location.pathname)`), "/ui/jobs/"), "@default")
	if log, err := u.ReadStoredLog(u.WaitAllocStatus(child, "complete"), "main", "stdout", "start", 0); err != nil || log != "höllo world\n" {
		u.t.Errorf("the task printed %q, %v", log, err)
	}
	p.Click("template")
	p.WaitText("[aria-label='Launched jobs'] td", "dispatch-")
}

func (u *uiJobsTest) periodic() {
	job := api.NewBatchJob("yearly", "yearly", api.GlobalRegion, 50)
	job.Periodic = &api.PeriodicConfig{Spec: new("0 0 1 1 *"), SpecType: new("cron")}
	u.register(job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("main", "exit 0"))))
	p := u.open("/ui/jobs/yearly@default")
	p.WaitText("main", "No job was launched yet.")
	p.WaitText("dl", "0 0 1 1 *")
	p.Click("Launch now")
	p.WaitText("[aria-label='Launched jobs'] tr", "dead")
	p.ScreenshotIfEnabled("periodic")
}

func (u *uiJobsTest) placement() {
	job := newUIJob("too-big", 2)
	job.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(99_999_999)
	u.register(job)
	p := u.open("/ui/jobs/too-big@default")
	p.WaitText(".notice", "2 allocations cannot be placed.")
	p.WaitText(".notice", "Not enough is left on this node: memory.")
	p.ScreenshotIfEnabled("placement")
	p.Click("Evaluation")
	p.WaitText("h1", "Evaluation")
	p.OpenPath("/ui/evaluations")
	p.EnterText("input[type=search]", "too-big")
	p.WaitText("td", "waits: web")
	p.ScreenshotIfEnabled("evaluations")
	p.RunSteps("open the evaluation", chromedp.Click(chromedp.CSS("tbody tr:last-child a")))
	p.WaitText(".notice", "Group “web”: 2 allocations cannot be placed.")
	p.WaitText("main", "the job was submitted")
	p.WaitText("main", "allocations wait for a place")
	p.ScreenshotIfEnabled("evaluation")
	p.CheckFitsPhone("evaluation-narrow")
	p.Click("too-big")
	p.Click("Evaluations")
}

func (u *uiJobsTest) services() {
	job := newUIJob("serving", 1)
	job.TaskGroups[0].Services = []*api.Service{{Name: "front", Provider: "nomad", Tags: []string{"<i>tag"}}}
	u.register(job)
	p := u.open("/ui/jobs/serving@default/services")
	p.WaitText("td", "<i>tag")
	p.WaitText("td a", "front")
}

// printedAddresses opens the addresses that Nomad's commands print or open, except addresses that other tests open.
func (u *uiJobsTest) printedAddresses() {
	u.register(newUIJob("printed", 1))
	alloc := u.WaitAllocStatus("printed", "running")
	p := u.open("/ui/evaluations?currentEval=" + alloc.EvalID)
	p.WaitText("h1", "Evaluation "+alloc.EvalID[:8])
	p.OpenPath("/ui/jobs/printed")
	p.WaitText("h1", "printed")
	p.OpenPath("/ui/jobs/printed/deployments")
	p.WaitText("main", alloc.DeploymentID[:8])
	p.OpenPath("/ui/servers")
	p.WaitText("h1", "ready")
}

func (u *uiJobsTest) search() {
	job := newUIJob("sought", 1)
	job.TaskGroups[0].Name, job.TaskGroups[0].Tasks[0].Name = new("sought-group"), "sought-task"
	u.register(job)
	if _, _, err := u.Variables().Create(&api.Variable{Path: "sought/secret", Items: api.VariableItems{"a": "b"}}, nil); err != nil {
		u.t.Fatal(err)
	}
	alloc := u.WaitAllocStatus("sought", "running")
	p := u.open("/ui/evaluations")
	p.WaitText("h1", "Evaluations")
	for _, search := range []struct{ text, want, path string }{
		{"sought", "jobsought", "/ui/jobs/sought@default"},
		{alloc.ID[:8], "allocation" + " " + alloc.ID[:8], "/ui/allocations/" + alloc.ID},
		{alloc.EvalID[:8], "evaluation" + alloc.EvalID, "/ui/evaluations/" + alloc.EvalID},
		{alloc.DeploymentID[:8], "deployment" + alloc.DeploymentID, "/ui/jobs/sought@default/deployments"},
		{"sought/sec", "variablesought/secret", "/ui/variables/var/sought%2Fsecret@default"},
	} {
		p.PressKeys("/")
		p.EnterText("dialog input", search.text)
		p.WaitFor(fmt.Sprintf(`[...document.querySelectorAll("dialog a")].some((a) => a.textContent === %q && a.getAttribute("href") === %q)`, search.want, search.path))
		p.WaitText("dialog [role=status]", "found")
		if search.text == "sought" {
			p.ScreenshotIfEnabled("search")
			p.WaitText("dialog a", "groupsought-group in sought")
			p.WaitText("dialog a", "tasksought-task in sought")
		}
		// The arrow key moves down to the match, and Enter opens it.
		for range 40 {
			p.PressKeys(kb.ArrowDown)
			if systemtest.Eval[string](p, `document.activeElement.getAttribute("href") ?? ""`) == search.path {
				break
			}
		}
		if search.text == "sought/sec" { // the page of variables belongs to another module
			p.PressKeys("\x1b")
			continue
		}
		p.PressKeys("\r")
		p.WaitFor(fmt.Sprintf(`location.pathname === %q && !document.querySelector("dialog")`, search.path))
		p.OpenPath("/ui/evaluations")
		p.WaitText("h1", "Evaluations")
	}
}

// hiddenTab checks that the tabs of a browser, which share six connections, do not block each other.
func (u *uiJobsTest) hiddenTab() {
	u.register(newUIJob("hidden", 1))
	u.waitRunning("hidden", 1)
	p := u.open("/ui/jobs/hidden@default")
	p.WaitText("td", "running")
	systemtest.Eval[chromedp.Void](p, `{ window.requests = 0; const f = fetch; window.fetch = (...a) => { window.requests++; return f(...a) } }`)
	p.SimulateHidden(true)
	// A refresh that started before the tab was hidden sends its last requests.
	for deadline := time.Now().Add(systemtest.PageTimeout); systemtest.Eval[int](p, `new Promise((resolve) => { const before = window.requests; setTimeout(() => resolve(window.requests - before), 1000) })`) > 0; {
		if time.Now().After(deadline) {
			u.t.Fatalf("a hidden tab still sends requests after %v", systemtest.PageTimeout)
		}
	}
	systemtest.Eval[chromedp.Void](p, `{ window.requests = 0 }`)
	u.changeMeta("hidden")
	u.waitJob("hidden", func(job *api.Job) bool { return *job.Version == 1 })
	if n := systemtest.Eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(window.requests), 500))`); n > 0 {
		u.t.Errorf("a hidden tab sent %d requests", n)
	}
	if systemtest.Eval[bool](p, `document.querySelector("dl").textContent.includes("Version1")`) {
		u.t.Error("a hidden tab followed a change")
	}
	p.SimulateHidden(false)
	p.WaitText("dl", "Version1")
}

// replaceFetch makes each further request of a page for the API have the result of a JavaScript expression.
const replaceFetch = `window.realFetch ??= window.fetch; window.fetch = (path, options) => path.startsWith("/v1/") ? %s : realFetch(path, options); true`

func (u *uiJobsTest) expiredToken() {
	p := u.open("/ui/jobs/run")
	p.EnterText("#specification", "my draft")
	systemtest.Eval[bool](p, fmt.Sprintf(replaceFetch, `Promise.resolve(new Response("Permission denied", { status: 403 }))`))
	p.Click("Plan")
	p.WaitText("h1", "Log in")
	p.EnterText("#token", "wrong")
	p.Click("Log in")
	p.WaitText("[role=alert]", "rejects this token")
	systemtest.Eval[bool](p, fmt.Sprintf(replaceFetch, `realFetch(path, options)`))
	p.Click("Log in")
	p.WaitFor(`document.querySelector("#specification")?.value === "my draft"`)

	p.OpenPath("/ui/jobs/expired@default")
	p.AllowError("/v1/job/expired")
	u.register(newUIJob("expired", 1))
	p.OpenPath("/ui/jobs/expired@default")
	p.WaitText("td", "running")
	// Only the action: the page itself shows the form if it follows a change before the click.
	systemtest.Eval[bool](p, fmt.Sprintf(replaceFetch, `options?.method === "DELETE" ? Promise.resolve(new Response("Permission denied", { status: 403 })) : realFetch(path, options)`))
	p.Click("Stop…")
	p.Click("Stop")
	p.WaitText("h1", "Log in")
	p.WaitFor(`!document.querySelector("dialog")`)
}

func (u *uiJobsTest) lostConnection() {
	p := u.open("/ui/jobs?text=lost-")
	p.WaitText("main", "No job matches the filters.")
	systemtest.Eval[bool](p, fmt.Sprintf(replaceFetch, `Promise.reject(new TypeError("no connection"))`))
	u.register(newUIJob("lost-a", 1))
	p.WaitFor(`!document.querySelector("#connection").hidden`)
	u.register(newUIJob("lost-b", 1))
	systemtest.Eval[bool](p, fmt.Sprintf(replaceFetch, `realFetch(path, options)`))
	p.WaitText("td", "lost-b")
	p.WaitFor(`document.querySelector("#connection").hidden`)
}

// TestUIManyJobs checks that a list with many jobs has few elements and is filtered quickly.
func TestUIManyJobs(t *testing.T) {
	slowtest.Skip(t, "registers 1,000 jobs")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	const count = 1000
	const clients = 20
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := client; i < count; i += clients {
				id := fmt.Sprintf("job-%04d", i)
				job := api.NewBatchJob(id, id, api.GlobalRegion, 50)
				job.ParameterizedJob = &api.ParameterizedJobConfig{}
				job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("main", "exit 0")))
				if _, _, err := s.Jobs().Register(job, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	p := systemtest.OpenSharedBrowser(t).OpenTab(s.Address, "/ui/jobs")
	p.WaitText("[role=status]", fmt.Sprintf("%d jobs", count))
	p.WaitText("td", "job-0000")
	if rows := systemtest.Eval[int](p, `document.querySelectorAll("tr").length`); rows > 200 {
		t.Errorf("%d rows are elements", rows)
	}
	systemtest.Eval[chromedp.Void](p, `scrollTo(0, document.body.scrollHeight)`)
	p.WaitText("td", fmt.Sprintf("job-%04d", count-1))
	p.ScreenshotIfEnabled("jobs-many")
	// The minimum of five runs excludes the processor time of other programs.
	fastest := math.Inf(1)
	for range 5 {
		fastest = min(fastest, systemtest.Eval[float64](p, `(() => { const e = document.querySelector("input[type=search]"); e.value = ""; e.dispatchEvent(new Event("input")); document.body.offsetHeight; const start = performance.now(); e.value = "job-01"; e.dispatchEvent(new Event("input")); document.body.offsetHeight; return performance.now() - start })()`))
	}
	t.Logf("filter of %d jobs: %.1f ms", count, fastest)
	if fastest > 500 {
		t.Errorf("the filter took %.0f ms", fastest)
	}
	p.WaitText("[role=status]", fmt.Sprintf("100 of %d jobs", count))
}
