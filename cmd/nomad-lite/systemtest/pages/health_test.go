package pages

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/docker/dockertest"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// failingJob is a job that does not work as its user wants.
type failingJob struct {
	edit     func(*api.Job, *api.TaskGroup, *api.Task)
	provoke  func(t *testing.T) // what makes the running job fail; nil if it fails by itself
	word     string
	sentence string // regular expression
}

// TestUIHealth plays the failures of jobs, and checks that the start page and the page of the job show, without a click, the
// sentence that `job status` prints.
func TestUIHealth(t *testing.T) {
	slowtest.Skip(t, "plays twelve failures, and shows them in a browser")
	t.Parallel()
	dir := t.TempDir()
	s := systemtest.StartTestAgent(t, false, writePlugins(t, dir))
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			http.Error(w, "out of order", http.StatusInternalServerError)
			return
		}
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Sscan(address.Port(), &port); err != nil {
		t.Fatal(err)
	}
	script := func(text string) map[string]any {
		return map[string]any{"command": "/bin/sh", "args": []string{"-c", text}}
	}
	failures := map[string]failingJob{
		"crash": {
			edit: func(_ *api.Job, g *api.TaskGroup, task *api.Task) {
				task.Config = script("echo cannot open the database >&2; exit 3")
				g.RestartPolicy = &api.RestartPolicy{Delay: new(time.Hour), Attempts: new(3), Interval: new(24 * time.Hour), Mode: new("fail")}
			},
			word: "failing", sentence: `^task "main": exit code 3 \(stderr: cannot open the database\), restarts at `,
		},
		"missing-program": {
			edit: func(_ *api.Job, g *api.TaskGroup, task *api.Task) {
				task.Config = map[string]any{"command": "/no/such/program"}
				g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
			},
			word: "failed", sentence: `^task "main": cannot start: .*\. Install /no/such/program, or correct "command"\. Version 0 is not deployed again, `,
		},
		"full-memory": {
			edit: func(_ *api.Job, _ *api.TaskGroup, task *api.Task) { task.Resources.MemoryMB = new(100_000_000) },
			word: "blocked", sentence: `^no place for group "g": memory exhausted: .* 100000000 MB .*: ask for less`,
		},
		"blocked-port": {
			edit: func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
				g.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "http", Value: port}}}}
			},
			word: "blocked", sentence: `^no place for group "g": port "http": .* listens there\. Stop it, or leave out static`,
		},
		"failing-check": {
			edit: func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
				// The checks do not delay the end of the deployment.
				g.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Millisecond), HealthCheck: new("task_states")}
				g.Services = []*api.Service{{Name: "web", Provider: "nomad", Address: "127.0.0.1", PortLabel: address.Port(), Checks: []api.ServiceCheck{
					{Name: "alive", Type: "http", Path: "/", Interval: time.Second, Timeout: time.Second},
				}}}
			},
			word: "degraded", sentence: `^check "alive" of service "web" fails: HTTP status 500 Internal Server Error: out of order$`,
		},
		"failing-hook": {
			edit: func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
				g.Meta = map[string]string{"lite_hook_dying": fmt.Sprintf(`{"ledger": %q, "refuse": ["prestart"]}`, filepath.Join(dir, "ledger"))}
				g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
			},
			word: "failed", sentence: `^task "main": hook dying: prestart: no prestart here`,
		},
		"slow-artifact": {
			edit: func(_ *api.Job, _ *api.TaskGroup, task *api.Task) {
				task.Artifacts = []*api.TaskArtifact{{GetterSource: new(server.URL + "/slow")}}
			},
			word: "waiting", sentence: `^task "main": downloads artifacts$`,
		},
		"waiting-template": {
			edit: func(_ *api.Job, _ *api.TaskGroup, task *api.Task) {
				task.Templates = []*api.Template{{EmbeddedTmpl: new(`{{ with nomadVar "no/password" }}{{ .x }}{{ end }}`), DestPath: new("local/x")}}
			},
			word: "waiting", sentence: `^task "main": template waits for variable no/password\. Write it: nomad-lite var put no/password KEY=VALUE$`,
		},
		"gone-device": {
			edit: func(_ *api.Job, _ *api.TaskGroup, task *api.Task) {
				task.Resources.Devices = []*api.RequestedDevice{{Name: "acme/widget/widget", Count: new(uint64(2))}}
			},
			provoke: func(t *testing.T) { writeFile(t, filepath.Join(dir, "widget.gone-a"), "") },
			word:    "degraded", sentence: `^task "main": runs, but (the node no longer has its device acme/widget/widget\[a\]|its device acme/widget/widget\[a\] is not healthy)`,
		},
		"failed-deployment": {
			edit: func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
				g.Update = &api.UpdateStrategy{
					MinHealthyTime: new(time.Hour), HealthyDeadline: new(2 * time.Hour), ProgressDeadline: new(3 * time.Hour), HealthCheck: new("task_states"), Canary: new(1),
				}
			},
			provoke: func(t *testing.T) { // the allocation of version 0 works, and there is none of version 1
				job, _, err := s.Jobs().Info("failed-deployment", nil)
				if err != nil {
					t.Fatal(err)
				}
				job.Meta = map[string]string{"version": "1"}
				if _, _, err := s.Jobs().Register(job, nil); err != nil {
					t.Fatal(err)
				}
				var d *api.Deployment
				s.WaitUntil("version 1 is deployed", func() (string, bool) {
					d, _, err = s.Jobs().LatestDeployment("failed-deployment", nil)
					return fmt.Sprint(d, err), err == nil && d != nil && d.JobVersion == 1
				})
				if _, _, err := s.Deployments().Fail(d.ID, nil); err != nil {
					t.Fatal(err)
				}
			},
			word: "degraded", sentence: `^deployment of version 1 failed: Deployment marked as failed\. Version 1 is not deployed again`,
		},
		"dead-plugin": {
			edit: func(_ *api.Job, _ *api.TaskGroup, task *api.Task) { task.Driver = "external_exec" },
			provoke: func(t *testing.T) {
				writeFile(t, filepath.Join(dir, "no-driver"), "")
				t.Cleanup(func() { // the agent shuts down when the driver has ended the task
					if err := os.Remove(filepath.Join(dir, "no-driver")); err != nil {
						t.Error(err)
					}
					if _, err := s.Raw().Write("/v1/agent/plugins/external_exec/restart", nil, nil, nil); err != nil {
						t.Error(err)
					}
				})
				killPlugin(t, s, "external_exec")
			},
			word: "degraded", sentence: `^task "main": runs, but driver "external_exec" is not healthy: .*nomad-lite plugin list shows its plugin$`,
		},
	}
	b := systemtest.OpenSharedBrowser(t)
	for id, f := range failures {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			p := runFailingJob(t, s, b.ForSubtest(t), id, f)
			if id == "crash" { // one click to the output
				p.Click("Output of task main")
				p.WaitText("pre.log", "cannot open the database")
			}
			if id == "dead-plugin" { // a condition of the agent is the first line of each page
				p.WaitText("#conditions > .condition", "Warning: Plugin external_exec "+filepath.Join(dir, "plugins", "external_exec")+" does not run: ")
				p.OpenPath("/ui/events")
				p.WaitText("#conditions > .condition", "nomad-lite plugin restart external_exec")
			}
		})
	}
	t.Run("bad-image", func(t *testing.T) {
		t.Parallel()
		engine := dockertest.StartOrSkip(t)
		s := systemtest.StartTestAgent(t, false, fmt.Sprintf("plugin \"docker\" {\n config {\n  endpoint = %q\n }\n}\n", engine.Host))
		runFailingJob(t, s, b.ForSubtest(t), "bad-image", failingJob{
			edit: func(_ *api.Job, g *api.TaskGroup, task *api.Task) {
				task.Driver, task.Config = "docker", map[string]any{"image": "127.0.0.1:1/no/such:1"}
				g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
				g.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
			},
			word: "failed", sentence: `^task "main": cannot start: .*127\.0\.0\.1:1`,
		})
	})
}

// runFailingJob registers a job that fails, checks that both pages show why, and returns the page of the job.
func runFailingJob(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser, id string, f failingJob) *systemtest.WebPage {
	t.Helper()
	agent := *s
	agent.T = t
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	group := api.NewTaskGroup("g", 1)
	task := systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript)
	f.edit(job, group, task)
	if _, _, err := s.Jobs().Register(job.AddTaskGroup(group.AddTask(task)), nil); err != nil {
		t.Fatal(err)
	}
	if f.provoke != nil {
		agent.WaitUntil("the task runs", func() (string, bool) {
			allocs, _, err := s.Jobs().Allocations(id, false, nil)
			return fmt.Sprint(err) + jobStatusOutput(&agent, id), len(allocs) == 1 && allocs[0].ClientStatus == api.AllocClientStatusRunning
		})
		f.provoke(t)
	}
	return checkHealthOnPages(t, &agent, b, id, f)
}

// checkHealthOnPages waits until `job status` prints the word and the sentence, and the start page shows the same; then it waits for
// the page of the job, and returns it.
func checkHealthOnPages(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser, id string, f failingJob) *systemtest.WebPage {
	t.Helper()
	wanted := regexp.MustCompile(f.sentence)
	p := b.OpenTab(s.Address, "/ui/jobs?text="+id)
	waitShown := func(page, element, wordPrefix string) {
		t.Helper()
		s.WaitUntil("the "+page+" shows the sentence of job status", func() (string, bool) {
			out := jobStatusOutput(s, id)
			word, sentence := fieldOfOutput(out, "Health"), fieldOfOutput(out, "Reason")
			shown := systemtest.Eval[string](p, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, element))
			return fmt.Sprintf("job status has %s: %s\nthe page has %s", word, sentence, shown),
				word == f.word && wanted.MatchString(sentence) && strings.Contains(shown, sentence) && strings.Contains(shown, wordPrefix+word)
		})
	}
	waitShown("start page", fmt.Sprintf(`tr[data-key='default/%s']`, id), "")
	p.ScreenshotIfEnabled("health-list-" + id)
	p.OpenPath("/ui/jobs/" + id + "@default")
	verb := "is "
	if f.word == "failed" {
		verb = "has "
	}
	waitShown("page of the job", "main .notice", "This job "+verb)
	p.ScreenshotIfEnabled("health-" + id)
	return p
}

// jobStatusOutput returns the output of `job status`.
func jobStatusOutput(s *systemtest.TestAgent, id string) string {
	var out systemtest.LockedBuffer
	root.Execute([]string{"job", "status", "-address=" + s.Address, id}, &cli.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
	return out.String()
}

// fieldOfOutput returns the value of a field in the output of a command.
func fieldOfOutput(output, name string) string {
	found := regexp.MustCompile(`(?m)^` + name + ` += (.*)$`).FindStringSubmatch(output)
	if found == nil {
		return ""
	}
	return strings.TrimSpace(found[1])
}

// writePlugins writes plugins into a directory, and returns the configuration of an agent that uses them: a hook, a device plugin
// and a driver, which no longer starts when the file no-driver exists.
func writePlugins(t *testing.T, dir string) (config string) {
	t.Helper()
	plugins := filepath.Join(dir, "plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	config = fmt.Sprintf("plugin_dir = %q\n", plugins)
	for name, command := range map[string]string{"dying": "dying-hook", "widget": "test-device widget", "external_exec": "exec-driver"} {
		program, args, _ := strings.Cut(command, " ")
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		condition, settings := "", ""
		if name == "external_exec" {
			condition, settings = "[ -e no-driver ] && { echo out of order >&2; exit 3; }\n", "config {\n enabled = true\n}\n"
		}
		writeFile(t, filepath.Join(plugins, name), fmt.Sprintf("#!/bin/sh\ncd '%s'\n%sexec %s %s\n", dir, condition, path, args))
		config += fmt.Sprintf("plugin %q {\n%s}\n", name, settings)
	}
	return config
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// killPlugin kills the process of a plugin of the agent.
func killPlugin(t *testing.T, s *systemtest.TestAgent, name string) {
	t.Helper()
	var report struct {
		Plugins []struct {
			Name string
			PID  int
		}
	}
	if _, err := s.Raw().Query("/v1/agent/plugins", &report, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range report.Plugins {
		if p.Name == name && p.PID > 0 {
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no process of plugin %q in %+v", name, report)
}
