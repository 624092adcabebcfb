package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// newArgumentList returns n different texts for a config block.
func newArgumentList(n int) []any {
	list := make([]any, n)
	for i := range list {
		list[i] = fmt.Sprint("argument-", i)
	}
	return list
}

// schemaStubNode is a node whose drivers have a schema with a list. It calls onRequest at each request for
// a schema.
type schemaStubNode struct {
	stubNode
	requestedDrivers []string
	onRequest        func()
}

func (n *schemaStubNode) TaskConfigSchema(_ context.Context, driver string) (*hclspec.Spec, error) {
	n.requestedDrivers = append(n.requestedDrivers, driver)
	if n.onRequest != nil {
		n.onRequest()
	}
	return hclspec.Object(map[string]*hclspec.Spec{"args": hclspec.Attr("args", "list(string)", false)}), nil
}

func newJobWithThreeDrivers() *api.Job {
	return newJob("big", "batch", "app", func(j *api.Job) {
		j.TaskGroups[0].Tasks = nil
		for _, driver := range []string{"one", "two", "three"} {
			j.TaskGroups[0].Tasks = append(j.TaskGroups[0].Tasks, &api.Task{Name: driver, Driver: driver, Config: map[string]any{"args": newArgumentList(10), "wrong": 1}})
		}
	})
}

func TestConfigCheckEndsWhenClientDisconnects(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	node := &schemaStubNode{}
	f := newFixture(t, nil)
	checker := &jobChecker{f.store, node, api.GlobalRegion, model.JobLimits{}, hclog.NewNullLogger()}
	job := newJobWithThreeDrivers()
	model.Canonicalize(job)
	if answer, err := checker.checkAdmission(ctx, job); err != nil || len(answer.ConfigFaults) != 3 || !answer.AllConfigsChecked || len(node.requestedDrivers) != 3 {
		t.Fatalf("with a client: %+v, %v, asked %q", answer, err, node.requestedDrivers)
	}
	node.requestedDrivers, node.onRequest = nil, cancel
	if answer, err := checker.checkAdmission(ctx, job); err != nil || len(answer.ConfigFaults) > 1 || answer.AllConfigsChecked || len(node.requestedDrivers) != 1 {
		t.Errorf("the client has disconnected while the first driver was asked: %+v, %v, asked %q", answer, err, node.requestedDrivers)
	}
}

func TestRegistrationOfDisconnectedClientChangesNothing(t *testing.T) {
	b := newClientFixture(t, nil)
	body, err := json.Marshal(map[string]any{"Job": newJob("gone", "batch", "app")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, "PUT", "/v1/jobs", bytes.NewReader(body))
	r.Host = "127.0.0.1:4646"
	b.ServeHTTP(httptest.NewRecorder(), r)
	_, _, err = b.Jobs().Info("gone", nil)
	var responseErr api.UnexpectedResponseError
	if !errors.As(err, &responseErr) || responseErr.StatusCode() != 404 {
		t.Errorf("the job was registered: %v", err)
	}
}

func TestConfigBlockThatIsTooLargeIsRefused(t *testing.T) {
	b := newClientFixture(t, nil)
	job := newJob("big", "batch", "app", func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].Config = map[string]any{"args": newArgumentList(hclspec.MaxValues)}
	})
	want := fmt.Sprintf("group.app.task.t.config: the config block holds %d values, and %d are allowed", hclspec.MaxValues+2, hclspec.MaxValues)
	if _, _, err := b.Jobs().Register(job, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("register: got %v, want %q", err, want)
	}
	if out, _, err := b.Jobs().Validate(job, nil); err != nil || !strings.Contains(out.Error, want) {
		t.Errorf("validate: got %v, %v, want %q", out, err, want)
	}
}

// BenchmarkJobsWithLongLists measures how the time of a registration and of a plan grows with the length
// of a list: the time per element is constant.
func BenchmarkJobsWithLongLists(b *testing.B) {
	lists := []struct {
		name string
		n    int // the longest list
		add  func(t *api.Task, i int)
	}{
		{"env", 50_000, func(t *api.Task, i int) {
			if t.Env == nil {
				t.Env = make(map[string]string)
			}
			t.Env[fmt.Sprint("NAME_", i)] = "value"
		}},
		{"constraints", 10_000, func(t *api.Task, i int) {
			t.Constraints = append(t.Constraints, api.NewConstraint("${attr.kernel.name}", "!=", fmt.Sprint("kernel-", i)))
		}},
		{"templates", 10_000, func(t *api.Task, i int) {
			t.Templates = append(t.Templates, &api.Template{EmbeddedTmpl: new("text"), DestPath: new(fmt.Sprint("local/", i))})
		}},
		{"services", 10_000, func(t *api.Task, i int) {
			t.Services = append(t.Services, &api.Service{Name: fmt.Sprint("service-", i), Provider: "nomad"})
		}},
	}
	run := func(b *testing.B, client *clientFixture, n int, edit func(t *api.Task, version int)) {
		version := 0
		job := func() *api.Job {
			version++
			return newJob("long", "batch", "app", withCount(0), func(j *api.Job) { edit(j.TaskGroups[0].Tasks[0], version) })
		}
		for what, call := range map[string]func(*api.Job) error{
			"register": func(j *api.Job) error { _, _, err := client.Jobs().Register(j, nil); return err },
			"plan":     func(j *api.Job) error { _, _, err := client.Jobs().Plan(j, true, nil); return err },
		} {
			b.Run(what, func(b *testing.B) {
				for b.Loop() {
					if err := call(job()); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/element")
			})
		}
	}
	for _, n := range []int{1000, 10_000, hclspec.MaxValues - 10} {
		client := newClientFixture(b, nil)
		setNode(&client.config, &schemaStubNode{})
		b.Run(fmt.Sprintf("args/%d", n), func(b *testing.B) {
			run(b, client, n, func(t *api.Task, version int) {
				args := newArgumentList(n)
				args[0] = version
				t.Config = map[string]any{"args": args}
			})
		})
	}
	for _, list := range lists {
		for _, n := range []int{list.n / 10, list.n} {
			client := newClientFixture(b, nil)
			b.Run(fmt.Sprintf("%s/%d", list.name, n), func(b *testing.B) {
				run(b, client, n, func(t *api.Task, version int) {
					for i := range n {
						list.add(t, i)
					}
					t.User = fmt.Sprint("user", version)
				})
			})
		}
	}
}

// waitingHookNode is a node whose hook plugins never start.
type waitingHookNode struct{ schemaStubNode }

func (*waitingHookNode) CheckHookAttachments(ctx context.Context, _ *api.Job) ([]admission.HookAttachmentFault, []error) {
	<-ctx.Done()
	return nil, []error{ctx.Err()}
}

func TestFaultsAreAnsweredWithoutHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checker := &jobChecker{newFixture(t, nil).store, &waitingHookNode{}, api.GlobalRegion, model.JobLimits{}, hclog.NewNullLogger()}
		for _, tt := range []struct {
			priority int
			want     time.Duration
		}{{50, hookStartTimeout}, {1000, 0}} {
			job := newJob("waits", "batch", "app")
			job.Priority = &tt.priority
			model.Canonicalize(job)
			began := time.Now()
			_, err := checker.checkAdmission(t.Context(), job)
			if got := time.Since(began); got != tt.want || (err != nil) != (tt.want == 0) {
				t.Errorf("a job of priority %d: answered after %v, %v; want %v", tt.priority, got, err, tt.want)
			}
		}
	})
}
