package systemtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/hashicorp/nomad/api"
)

// TestUIJobs uses the pages of jobs and evaluations, and the search, as a person does. The subtests share an agent
// and a browser, and each has jobs of its own.
func TestUIJobs(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)
	for _, test := range []struct {
		name string
		run  func(*uiJobsTest)
	}{
		{"list follows changes and keeps the focus", (*uiJobsTest).list},
		{"editor shows errors at their place, plans and runs", (*uiJobsTest).edit},
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
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			agent := *s
			agent.t = t
			test.run(&uiJobsTest{testAgent: &agent, t: t, browser: &browser{t, b.ctx}})
		})
	}
}

type uiJobsTest struct {
	*testAgent
	t       *testing.T
	browser *browser
}

func (u *uiJobsTest) open(path string) *webPage {
	u.t.Helper()
	return u.browser.openTab(u.address, path)
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
	return job.AddTaskGroup(group.AddTask(newShellTask("main", sleepForeverScript)))
}

// waitJob waits until a job of the agent fulfils a condition.
func (u *uiJobsTest) waitJob(id string, is func(*api.Job) bool) {
	u.t.Helper()
	u.waitUntil(id, func() (string, bool) {
		job, _, err := u.Jobs().Info(id, nil)
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%+v", job), is(job)
	})
}

func (u *uiJobsTest) waitRunning(id string, count int) {
	u.t.Helper()
	u.waitUntil(id+" runs", func() (string, bool) {
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
	p.waitText("tr[data-key='default/list-a']", "2 running")
	eval[chromedp.Void](p, `document.querySelector("tr[data-key='default/list-a'] a").focus(); window.row = document.activeElement.closest("tr")`)
	hostile := newUIJob("list-hostile", 1)
	hostile.Name = new(hostileName)
	u.register(hostile)
	p.waitText("tr[data-key='default/list-hostile']", hostileName)
	if !eval[bool](p, `window.row.contains(document.activeElement) && window.row.isConnected`) {
		u.t.Error("the focus was lost when the list changed")
	}
	if _, _, err := u.Jobs().Deregister("list-hostile", false, nil); err != nil {
		u.t.Fatal(err)
	}
	p.waitText("tr[data-key='default/list-hostile']", "stopped")
	p.screenshot("jobs")
	p.choose("select[aria-label=Status]", "stopped")
	p.waitFor(`document.querySelectorAll("tbody tr").length === 1 && location.search.includes("status=stopped")`)
	p.open("/ui/jobs?text=list-&status=stopped")
	p.waitText("tr[data-key='default/list-hostile']", hostileName)
	p.open("/ui/jobs?text=list-")
	p.waitText("tr[data-key='default/list-a']", "list-a")
	p.click("Name")
	p.click("Name")
	p.waitFor(`document.querySelector("th[aria-sort=descending]") && document.querySelector("tbody tr").textContent.includes("hostile")`)
	p.checkNarrow("jobs-narrow")
}

// phoneWidth and phoneHeight are the size of the screen of a phone, in pixels.
const phoneWidth, phoneHeight = 360, 740

// checkNarrow checks that the page needs no horizontal scrolling on a phone.
func (p *webPage) checkNarrow(screenshot string) {
	p.t.Helper()
	p.setSize(phoneWidth, phoneHeight)
	p.waitFor(fmt.Sprintf("innerWidth === %d", phoneWidth))
	if eval[bool](p, `document.documentElement.scrollWidth > innerWidth`) {
		p.t.Errorf("%s: the page is wider than the screen", screenshot)
	}
	p.screenshot(screenshot)
	p.setSize(1280, 900)
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
	p.allowError("/v1/jobs/parse") // the status 400 of the text with an error
	p.enter("#specification", "job \"x\" {\n\tgroup \"g\" {}\nfoo = 1\n")
	if got := eval[string](p, `document.querySelector("#specification").value`); got != "job \"x\" {\n  group \"g\" {}\n  foo = 1\n  " {
		u.t.Errorf("the Tab key and automatic indentation: %q", got)
	}
	p.press("}")
	p.click("Plan")
	p.waitText("main [role=alert]", `An argument named "foo" is not expected here.`)
	p.waitText("main [role=alert] button", "Line 3, column 3")
	p.waitText(".numbers mark", "3")
	p.screenshot("run-error")
	if got := eval[string](p, `(() => { const e = document.activeElement; return e.value.slice(e.selectionStart, e.selectionEnd) })()`); got != "foo" {
		u.t.Errorf("%q is selected", got)
	}
	p.press("\x1b\t")
	p.waitFor(`document.activeElement.tagName === "SUMMARY"`) // Escape, Tab leaves the editor
	eval[chromedp.Void](p, fmt.Sprintf(`{
		const opened = new DataTransfer();
		opened.items.add(new File([%q], "edited.nomad.hcl"));
		const e = document.querySelector("input[type=file]");
		e.files = opened.files;
		e.dispatchEvent(new Event("change"));
	}`, uiJobText))
	p.waitFor(`document.querySelector("#specification").value.startsWith("# comment")`)
	p.waitFor(`!document.querySelector(".numbers mark")`)
	p.click("Values of HCL variables")
	p.enter("#variables", `seconds = "2000"`)
	p.click("Plan")
	p.waitText("h2", "Plan of job edited")
	p.waitText("main", "This is a new job.")
	p.waitText("main li", "Group “web”: start 1")
	p.waitText(".diff .added", `Env[A]: "<b>1</b>\u202e"`)
	p.waitText(".diff .added .hidden-text", "added")
	p.screenshot("run-plan")
	p.checkNarrow("run-narrow")
	p.click("Run")
	p.waitFor(`location.pathname === "/ui/jobs/edited@default"`)
	p.waitText("h1", "edited")
	p.waitText("td", "running")
	p.click("Definition")
	p.waitText("pre", "# comment of the author")
	p.waitText("pre", `seconds = "2000"`)
	p.screenshot("definition")
	p.click("Edit")
	p.waitFor(`document.querySelector("#specification")?.value.startsWith("# comment") && document.querySelector("#variables").value.includes("2000")`)
	u.changeMeta("edited")
	eval[chromedp.Void](p, `{ const e = document.querySelector("#specification"); e.value = e.value.replace("memory = 10", "memory = 99999999"); e.dispatchEvent(new Event("input")) }`)
	p.click("Plan")
	p.waitText(".diff .changed", `MemoryMB: "10" → "99999999"`)
	p.waitText(".notice", "Not enough is left on this node: memory.")
	u.changeMeta("edited")
	p.allowError("/v1/jobs") // the job has changed since the plan
	p.click("Run")
	p.waitText("main [role=alert]", "The agent rejects the job")
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

func (u *uiJobsTest) actions() {
	u.register(newUIJob("acted", 1))
	u.waitRunning("acted", 1)
	p := u.open("/ui/jobs/acted@default")
	p.waitText("tr", "Task started by client")
	p.screenshot("job")
	p.click("Scale")
	p.enter("dialog input[name=count]", "2")
	p.click("Scale")
	p.waitFor(`!document.querySelector("dialog")`)
	u.waitRunning("acted", 2)
	p.waitFor(`document.querySelectorAll("[aria-label=Allocations] tbody .status-running").length === 2`)
	p.click("Restart allocations…")
	p.screenshot("job-restart")
	p.click("Restart")
	p.waitFor(`!document.querySelector("dialog") && [...document.querySelectorAll("[aria-label=Allocations] tbody tr")].filter((tr) => tr.children[5].textContent === "1").length === 2`)
	p.checkNarrow("job-narrow")
	p.click("Stop…")
	p.click("Cancel")
	p.waitFor(`!document.querySelector("dialog")`)
	p.click("Stop…")
	p.click("Stop")
	p.waitText("h1 + span", "stopped")
	p.allowError("/v1/job/acted/submission") // the status 404 of a job that was submitted as JSON
	p.click("Start again…")
	p.click("Start again")
	u.waitRunning("acted", 2)
	p.waitText("h1 + span", "running")
	p.click("Stop…")
	p.allowError("/v1/job/acted") // the status 404 of the purged job
	p.do("select purge", chromedp.Click(chromedp.CSS("dialog input[name=purge]")))
	p.click("Stop")
	p.waitFor(`location.pathname === "/ui/jobs" && !document.querySelector("dialog")`)
	p.open("/ui/jobs/acted@default")
	p.waitText("h1", "There is no job acted in namespace default")
}

func (u *uiJobsTest) deployment() {
	job := newUIJob("deployed", 1)
	job.TaskGroups[0].Update.Canary = new(1)
	u.register(job)
	u.waitRunning("deployed", 1)
	p := u.open("/ui/jobs/deployed@default")
	p.waitText("main", "Deployment completed successfully")
	newVersion := func(value string) {
		job.TaskGroups[0].Tasks[0].Env = map[string]string{"V": value}
		u.register(job)
	}
	newVersion("1")
	p.waitText("section", "requires manual promotion")
	p.waitText("section td", "1 of 1")
	p.screenshot("deployment")
	p.click("Pause")
	p.waitText("h2", "paused")
	p.click("Resume")
	p.waitText("h2", "running")
	p.click("Promote canaries")
	p.waitText("h2", "successful")
	newVersion("2")
	p.click("Fail…")
	p.click("Fail deployment")
	p.waitText("h2", "failed")
	p.click("Deployments")
	p.waitFor(`document.querySelectorAll("main section").length === 3`)
	p.screenshot("deployments")
}

func (u *uiJobsTest) versions() {
	job := u.register(newUIJob("versioned", 1))
	u.waitRunning("versioned", 1)
	job.TaskGroups[0].Tasks[0].Env = map[string]string{"NEW": "value"}
	u.register(job)
	p := u.open("/ui/jobs/versioned@default/versions")
	p.waitText("section", `Env[NEW]: "value"`)
	p.click("Tag version 0")
	p.enter("dialog input[name=name]", hostileName)
	p.click("Tag")
	p.waitText("h2", hostileName)
	p.screenshot("versions")
	p.click("Remove tag")
	p.waitFor(`!document.querySelector("main").textContent.includes("onerror")`)
	p.click("Revert to version 0")
	p.click("Revert")
	p.waitText("h2", "Version 2 (current)")
	p.waitText("section[data-key='2'] .removed", `Env[NEW]: "value"`)
	p.choose("#base", "0")
	p.waitText("section[data-key='2']", "Nothing changes.")
	p.allowError("/v1/job/versioned/submission") // the status 404 of a job that was submitted as JSON
	p.open("/ui/jobs/run?job=versioned&version=1")
	p.waitFor(`document.querySelector("#specification")?.value.includes('"NEW": "value"')`)
	p.click("Plan")
	p.waitText(".diff .added", `Env[NEW]: "value"`)
	u.waitJob("versioned", func(job *api.Job) bool { return *job.Version == 2 && job.TaskGroups[0].Tasks[0].Env["NEW"] == "" })
}

func (u *uiJobsTest) dispatch() {
	job := api.NewBatchJob("template", "template", api.GlobalRegion, 50)
	job.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaRequired: []string{"who"}, MetaOptional: []string{"how"}}
	task := newShellTask("main", `cat "$NOMAD_TASK_DIR/input"; echo " $NOMAD_META_who"`)
	task.DispatchPayload = &api.DispatchPayloadConfig{File: "input"}
	u.register(job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(task)))
	p := u.open("/ui/jobs/template@default/dispatch")
	p.enter("dialog input[name='meta.who']", "world")
	p.enter("dialog textarea", "höllo")
	p.screenshot("dispatch")
	p.click("Dispatch")
	p.waitFor(`decodeURIComponent(location.pathname).startsWith("/ui/jobs/template/dispatch-")`)
	p.waitText("td", "complete")
	child := strings.TrimSuffix(strings.TrimPrefix(eval[string](p, `decodeURIComponent(location.pathname)`), "/ui/jobs/"), "@default")
	if log, err := u.readLog(u.waitAlloc(child, "complete"), "main", "stdout", "start", 0); err != nil || log != "höllo world\n" {
		u.t.Errorf("the task printed %q, %v", log, err)
	}
	p.click("template")
	p.waitText("[aria-label='Launched jobs'] td", "dispatch-")
}

func (u *uiJobsTest) periodic() {
	job := api.NewBatchJob("yearly", "yearly", api.GlobalRegion, 50)
	job.Periodic = &api.PeriodicConfig{Spec: new("0 0 1 1 *"), SpecType: new("cron")}
	u.register(job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(newShellTask("main", "exit 0"))))
	p := u.open("/ui/jobs/yearly@default")
	p.waitText("main", "No job was launched yet.")
	p.waitText("dl", "0 0 1 1 *")
	p.click("Launch now")
	p.waitText("[aria-label='Launched jobs'] tr", "dead")
	p.screenshot("periodic")
}

func (u *uiJobsTest) placement() {
	job := newUIJob("too-big", 2)
	job.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(99_999_999)
	u.register(job)
	p := u.open("/ui/jobs/too-big@default")
	p.waitText(".notice", "2 allocations cannot be placed.")
	p.waitText(".notice", "Not enough is left on this node: memory.")
	p.screenshot("placement")
	p.click("Evaluation")
	p.waitText("h1", "Evaluation")
	p.open("/ui/evaluations")
	p.enter("input[type=search]", "too-big")
	p.waitText("td", "waits: web")
	p.screenshot("evaluations")
	p.do("open the evaluation", chromedp.Click(chromedp.CSS("tbody tr:last-child a")))
	p.waitText(".notice", "Group “web”: 2 allocations cannot be placed.")
	p.waitText("main", "the job was submitted")
	p.waitText("main", "allocations wait for a place")
	p.screenshot("evaluation")
	p.checkNarrow("evaluation-narrow")
	p.click("too-big")
	p.click("Evaluations")
}

func (u *uiJobsTest) services() {
	job := newUIJob("serving", 1)
	job.TaskGroups[0].Services = []*api.Service{{Name: "front", Provider: "nomad", Tags: []string{"<i>tag"}}}
	u.register(job)
	p := u.open("/ui/jobs/serving@default/services")
	p.waitText("td", "<i>tag")
	p.waitText("td a", "front")
}

// printedAddresses opens the addresses that Nomad's commands print or open, except addresses that other tests open.
func (u *uiJobsTest) printedAddresses() {
	u.register(newUIJob("printed", 1))
	alloc := u.waitAlloc("printed", "running")
	p := u.open("/ui/evaluations?currentEval=" + alloc.EvalID)
	p.waitText("h1", "Evaluation "+alloc.EvalID[:8])
	p.open("/ui/jobs/printed")
	p.waitText("h1", "printed")
	p.open("/ui/jobs/printed/deployments")
	p.waitText("main", alloc.DeploymentID[:8])
	p.open("/ui/servers")
	p.waitText("h1", "ready")
}

func (u *uiJobsTest) search() {
	job := newUIJob("sought", 1)
	job.TaskGroups[0].Name, job.TaskGroups[0].Tasks[0].Name = new("sought-group"), "sought-task"
	u.register(job)
	if _, _, err := u.Variables().Create(&api.Variable{Path: "sought/secret", Items: api.VariableItems{"a": "b"}}, nil); err != nil {
		u.t.Fatal(err)
	}
	alloc := u.waitAlloc("sought", "running")
	p := u.open("/ui/evaluations")
	p.waitText("h1", "Evaluations")
	for _, search := range []struct{ text, want, path string }{
		{"sought", "jobsought", "/ui/jobs/sought@default"},
		{alloc.ID[:8], "allocation" + " " + alloc.ID[:8], "/ui/allocations/" + alloc.ID},
		{alloc.EvalID[:8], "evaluation" + alloc.EvalID, "/ui/evaluations/" + alloc.EvalID},
		{alloc.DeploymentID[:8], "deployment" + alloc.DeploymentID, "/ui/jobs/sought@default/deployments"},
		{"sought/sec", "variablesought/secret", "/ui/variables/var/sought%2Fsecret@default"},
	} {
		p.press("/")
		p.enter("dialog input", search.text)
		p.waitFor(fmt.Sprintf(`[...document.querySelectorAll("dialog a")].some((a) => a.textContent === %q && a.getAttribute("href") === %q)`, search.want, search.path))
		p.waitText("dialog [role=status]", "found")
		if search.text == "sought" {
			p.screenshot("search")
			p.waitText("dialog a", "groupsought-group in sought")
			p.waitText("dialog a", "tasksought-task in sought")
		}
		// The arrow key moves down to the match, and Enter opens it.
		for range 40 {
			p.press(kb.ArrowDown)
			if eval[string](p, `document.activeElement.getAttribute("href") ?? ""`) == search.path {
				break
			}
		}
		if search.text == "sought/sec" { // the page of variables belongs to another module
			p.press("\x1b")
			continue
		}
		p.press("\r")
		p.waitFor(fmt.Sprintf(`location.pathname === %q && !document.querySelector("dialog")`, search.path))
		p.open("/ui/evaluations")
		p.waitText("h1", "Evaluations")
	}
}

// hiddenTab checks that the tabs of a browser, which share six connections, do not block each other.
func (u *uiJobsTest) hiddenTab() {
	u.register(newUIJob("hidden", 1))
	u.waitRunning("hidden", 1)
	p := u.open("/ui/jobs/hidden@default")
	p.waitText("td", "running")
	eval[chromedp.Void](p, `{ window.requests = 0; const f = fetch; window.fetch = (...a) => { window.requests++; return f(...a) } }`)
	p.setHidden(true)
	// A refresh that started before the tab was hidden sends its last requests.
	for deadline := time.Now().Add(pageTimeout); eval[int](p, `new Promise((resolve) => { const before = window.requests; setTimeout(() => resolve(window.requests - before), 1000) })`) > 0; {
		if time.Now().After(deadline) {
			u.t.Fatalf("a hidden tab still sends requests after %v", pageTimeout)
		}
	}
	eval[chromedp.Void](p, `{ window.requests = 0 }`)
	u.changeMeta("hidden")
	u.waitJob("hidden", func(job *api.Job) bool { return *job.Version == 1 })
	if n := eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(window.requests), 500))`); n > 0 {
		u.t.Errorf("a hidden tab sent %d requests", n)
	}
	if eval[bool](p, `document.querySelector("dl").textContent.includes("Version1")`) {
		u.t.Error("a hidden tab followed a change")
	}
	p.setHidden(false)
	p.waitText("dl", "Version1")
}

// replaceFetch makes each further request of a page for the API have the result of a JavaScript expression.
const replaceFetch = `window.realFetch ??= window.fetch; window.fetch = (path, options) => path.startsWith("/v1/") ? %s : realFetch(path, options); true`

func (u *uiJobsTest) expiredToken() {
	p := u.open("/ui/jobs/run")
	p.enter("#specification", "my draft")
	eval[bool](p, fmt.Sprintf(replaceFetch, `Promise.resolve(new Response("Permission denied", { status: 403 }))`))
	p.click("Plan")
	p.waitText("h1", "Log in")
	p.enter("#token", "wrong")
	p.click("Log in")
	p.waitText("[role=alert]", "rejects this token")
	eval[bool](p, fmt.Sprintf(replaceFetch, `realFetch(path, options)`))
	p.click("Log in")
	p.waitFor(`document.querySelector("#specification")?.value === "my draft"`)

	p.open("/ui/jobs/expired@default")
	p.allowError("/v1/job/expired")
	u.register(newUIJob("expired", 1))
	p.open("/ui/jobs/expired@default")
	p.waitText("td", "running")
	// Only the action: the page itself shows the form if it follows a change before the click.
	eval[bool](p, fmt.Sprintf(replaceFetch, `options?.method === "DELETE" ? Promise.resolve(new Response("Permission denied", { status: 403 })) : realFetch(path, options)`))
	p.click("Stop…")
	p.click("Stop")
	p.waitText("h1", "Log in")
	p.waitFor(`!document.querySelector("dialog")`)
}

func (u *uiJobsTest) lostConnection() {
	p := u.open("/ui/jobs?text=lost-")
	p.waitText("main", "No job matches the filters.")
	eval[bool](p, fmt.Sprintf(replaceFetch, `Promise.reject(new TypeError("no connection"))`))
	u.register(newUIJob("lost-a", 1))
	p.waitFor(`!document.querySelector("#connection").hidden`)
	u.register(newUIJob("lost-b", 1))
	eval[bool](p, fmt.Sprintf(replaceFetch, `realFetch(path, options)`))
	p.waitText("td", "lost-b")
	p.waitFor(`document.querySelector("#connection").hidden`)
}

// TestUIManyJobs checks that a list with many jobs has few elements and is filtered quickly.
func TestUIManyJobs(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	const count = 1000
	const clients = 20
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for i := client; i < count; i += clients {
				id := fmt.Sprintf("job-%04d", i)
				job := api.NewBatchJob(id, id, api.GlobalRegion, 50)
				job.ParameterizedJob = &api.ParameterizedJobConfig{}
				job.AddTaskGroup(api.NewTaskGroup("g", 1).AddTask(newShellTask("main", "exit 0")))
				if _, _, err := s.Jobs().Register(job, nil); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	p := startBrowser(t).openTab(s.address, "/ui/jobs")
	p.waitText("[role=status]", fmt.Sprintf("%d jobs", count))
	p.waitText("td", "job-0000")
	if rows := eval[int](p, `document.querySelectorAll("tr").length`); rows > 200 {
		t.Errorf("%d rows are elements", rows)
	}
	eval[chromedp.Void](p, `scrollTo(0, document.body.scrollHeight)`)
	p.waitText("td", fmt.Sprintf("job-%04d", count-1))
	p.screenshot("jobs-many")
	elapsed := eval[float64](p, `(() => { const e = document.querySelector("input[type=search]"), start = performance.now(); e.value = "job-01"; e.dispatchEvent(new Event("input")); document.body.offsetHeight; return performance.now() - start })()`)
	t.Logf("filter of %d jobs: %.1f ms", count, elapsed)
	if elapsed > 500 {
		t.Errorf("the filter took %.0f ms", elapsed)
	}
	p.waitText("[role=status]", fmt.Sprintf("100 of %d jobs", count))
}
