package pages

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestUIStartPage shows launched jobs and ports in the list of jobs.
func TestUIStartPage(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	runUIJobsCases(t, []uiJobsCase{
		{"launched jobs are folded under their parent, with their results", (*uiJobsTest).launchedJobs},
		{"ports are links that open", (*uiJobsTest).ports},
	})
}

// shownRows is an expression: the keys of the rows of the list of jobs.
const shownRows = `[...document.querySelectorAll("tbody tr")].map((tr) => tr.dataset.key).join(" ")`

func (u *uiJobsTest) launchedJobs() {
	job := api.NewBatchJob("import", "import", api.GlobalRegion, 50)
	job.ParameterizedJob = &api.ParameterizedJobConfig{MetaRequired: []string{"code"}}
	group := api.NewTaskGroup("g", 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(1), Delay: new(time.Hour), Interval: new(24 * time.Hour), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	// The exit code 2 is a failure of a job that is started again in an hour, and 1 that of one which is not.
	u.register(job.AddTaskGroup(group.AddTask(systemtest.NewRawExecShellTask("main", `exit $NOMAD_META_code`))))
	dispatch := func(code, status string) string {
		u.t.Helper()
		reply, _, err := u.Jobs().Dispatch("import", map[string]string{"code": code}, nil, "", nil)
		if err != nil {
			u.t.Fatal(err)
		}
		u.WaitAllocStatus(reply.DispatchedJobID, status)
		return "default/" + reply.DispatchedJobID
	}
	first := dispatch("0", "complete")
	stopped := dispatch("1", "pending")
	if _, _, err := u.Jobs().Deregister(strings.TrimPrefix(stopped, "default/"), false, nil); err != nil {
		u.t.Fatal(err)
	}
	last := dispatch("0", "complete")

	p := u.open("/ui/jobs?text=import")
	const row = `tr[data-key='default/import']`
	p.WaitText(row+" .results", "✓■✓")
	p.WaitFor(shownRows + ` === "default/import"`)
	p.WaitText(row+" button", "3 launched")
	p.WaitText(row, "starts when it is dispatched")
	if label := systemtest.Eval[string](p, `document.querySelector(".results a:last-child").getAttribute("aria-label")`); !strings.HasPrefix(label, strings.TrimPrefix(last, "default/import/")+": complete, launched ") {
		u.t.Errorf("the label of the last result is %q", label)
	}
	p.Click("3 launched")
	p.WaitFor(fmt.Sprintf(`%s === %q`, shownRows, strings.Join([]string{"default/import", last, stopped, first}, " ")))
	p.WaitText("tr[data-key='"+stopped+"'] td", "stopped")
	p.ScreenshotIfEnabled("launched")
	p.Click("Name") // launched jobs stay below the job that has launched them
	p.Click("Name")
	p.WaitFor(`document.querySelector("th[aria-sort=descending]")`)
	p.WaitFor(fmt.Sprintf(`%s === %q`, shownRows, strings.Join([]string{"default/import", last, stopped, first}, " ")))
	p.Click("3 launched")
	p.WaitFor(shownRows + ` === "default/import"`)

	p.PressKeys("j")
	p.PressKeys(kb.ArrowRight)
	p.WaitFor(fmt.Sprintf(`%s === %q`, shownRows, strings.Join([]string{"default/import", last, stopped, first}, " ")))
	p.PressKeys("h")
	p.WaitFor(shownRows + ` === "default/import"`)

	p.SelectOption("select[aria-label=Health]", "stopped")
	p.WaitFor(fmt.Sprintf(`%s === %q`, shownRows, "default/import "+stopped))
	p.SelectOption("select[aria-label=Health]", "")
	p.WaitFor(shownRows + ` === "default/import"`)
	failing := dispatch("2", "pending")
	p.WaitFor(fmt.Sprintf(`%s === %q`, shownRows, "default/import "+failing)) // without a click
	p.WaitText("tr[data-key='"+failing+"'] .reason", "exit code 2")
	p.WaitText("[role=status]", "attention")
	p.CheckFitsPhone("launched-phone")
	p.RunSteps("open a result", chromedp.Click(chromedp.CSS(row+" .results a:first-child")))
	p.WaitText("h1", strings.TrimPrefix(first, "default/"))
}

func (u *uiJobsTest) ports() {
	job := newUIJob("ports", 1)
	job.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "plain"}, {Label: "secure"}}}}
	https := api.ServiceCheck{Type: "http", Protocol: "https", TLSSkipVerify: true, Path: "/", Interval: time.Hour, Timeout: time.Second}
	job.TaskGroups[0].Services = []*api.Service{{Name: "secure", Provider: "nomad", PortLabel: "secure", Checks: []api.ServiceCheck{https}}}
	u.register(job)
	alloc := u.WaitAllocStatus("ports", "running")
	type visit struct {
		label string
		isTLS bool
	}
	visits := make(chan visit, 10)
	texts := map[string]string{}
	for _, port := range alloc.AllocatedResources.Shared.Ports {
		texts[port.Label] = fmt.Sprint(port.Label, " ", port.Value)
		listener, err := net.Listen("tcp", net.JoinHostPort(port.HostIP, fmt.Sprint(port.Value)))
		if err != nil {
			u.t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" && strings.HasPrefix(r.UserAgent(), "Mozilla/") {
				visits <- visit{port.Label, r.TLS != nil}
			}
		}))
		server.Listener = listener
		server.TLS = &tls.Config{}
		if port.Label == "secure" {
			server.StartTLS()
		} else {
			server.Start()
		}
		u.t.Cleanup(server.Close)
	}
	p := u.open("/ui/jobs?text=ports")
	for _, label := range []string{"plain", "secure"} {
		p.WaitText("tr .ports a", texts[label])
		p.Click(texts[label])
		select {
		case v := <-visits:
			if v.label != label || v.isTLS != (label == "secure") {
				u.t.Errorf("the link of the port %s has opened %+v", label, v)
			}
		case <-time.After(systemtest.WaitTimeout):
			u.t.Fatalf("the link of the port %s opens nothing", label)
		}
	}
	p.ScreenshotIfEnabled("ports")
}
