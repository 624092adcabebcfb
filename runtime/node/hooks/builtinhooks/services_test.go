package builtinhooks

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
)

// newServiceSet returns a set with a group service and a task service, and a check for their registrations.
func newServiceSet(t *testing.T) (*services.AllocServices, func(when string, want ...string)) {
	registry := new(servicestest.Registry)
	spec := &services.AllocServicesSpec{AllocID: "a", Group: "g", Services: []services.Service{{Name: "front"}, {Task: "t", Name: "back"}}}
	set := services.New(services.Config{
		AllocID:     "a",
		CurrentSpec: func() *services.AllocServicesSpec { return spec },
		CurrentEnv: func(string) *taskenv.Env {
			return taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}).Build()
		},
		Registry: registry,
		Logger:   hclog.NewNullLogger(),
	})
	return set, func(when string, want ...string) {
		t.Helper()
		var names []string
		for _, s := range registry.ServicesByAllocation("a") {
			names = append(names, s.ServiceName)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: %q are registered, want %q", when, names, want)
		}
	}
}

func TestGroupServices(t *testing.T) {
	set, want := newServiceSet(t)
	h := NewGroupServicesHook(set)
	ctx := t.Context()
	steps := []struct {
		when string
		do   func() error
		want []string
	}{
		{"update before prerun", func() error { return discardResult(h.UpdateAlloc(ctx, hook.AllocUpdateRequest{})) }, nil},
		{"prerun", func() error { return discardResult(h.Prerun(ctx, hook.AllocPrerunRequest{})) }, []string{"front"}},
		{"before a restart", func() error { return discardResult(h.PreTaskRestart(ctx, hook.AllocPreTaskRestartRequest{})) }, nil},
		{"after a restart", h.RegisterAgain, []string{"front"}},
		{"prekill", func() error { return discardResult(h.PreKill(ctx, hook.AllocPreKillRequest{})) }, nil},
		{"a restart that ends after prekill", h.RegisterAgain, nil},
		{"a prerun that ends after prekill", func() error { return discardResult(h.Prerun(ctx, hook.AllocPrerunRequest{})) }, nil},
		{"prekill again", func() error { return discardResult(h.PreKill(ctx, hook.AllocPreKillRequest{})) }, nil},
		{"postrun", func() error { return discardResult(h.Postrun(ctx, hook.AllocPostrunRequest{})) }, nil},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Errorf("%s: %v", s.when, err)
		}
		want(s.when, s.want...)
	}
}

func TestTaskServices(t *testing.T) {
	set, want := newServiceSet(t)
	h := NewTaskServicesHook(set, "t")
	ctx := t.Context()
	prestart := func(running bool) func() error {
		return func() error {
			r, err := h.Prestart(ctx, hook.TaskPrestartRequest{Running: running})
			if r.Done || r.State != nil {
				t.Errorf("prestart answers %+v", r)
			}
			return err
		}
	}
	poststart := func() error { return discardResult(h.Poststart(ctx, hook.TaskPoststartRequest{})) }
	for _, s := range []struct {
		when string
		do   func() error
		want []string
	}{
		{"prestart", prestart(false), nil},
		{"poststart", poststart, []string{"back"}},
		{"prestart of a task that runs", prestart(true), []string{"back"}},
		{"update", func() error { return discardResult(h.Update(ctx, hook.TaskUpdateRequest{})) }, []string{"back"}},
		{"prekilling", func() error { return discardResult(h.PreKilling(ctx, hook.TaskPreKillingRequest{})) }, nil},
		{"update while it is stopped", func() error { return discardResult(h.Update(ctx, hook.TaskUpdateRequest{})) }, nil},
		{"poststart again", poststart, []string{"back"}},
		{"exited", func() error { return discardResult(h.Exited(ctx, hook.TaskExitedRequest{})) }, nil},
		{"poststart once more", poststart, []string{"back"}},
		{"stop", func() error { return discardResult(h.Stop(ctx, hook.TaskStopRequest{})) }, nil},
	} {
		if err := s.do(); err != nil {
			t.Errorf("%s: %v", s.when, err)
		}
		want(s.when, s.want...)
	}

	// After a power failure, the services are still registered.
	if err := errors.Join(poststart(), discardResult(NewTaskServicesHook(set, "t").Poststart(ctx, hook.TaskPoststartRequest{}))); err != nil {
		t.Fatal(err)
	}
	if err := prestart(false)(); err != nil {
		t.Fatal(err)
	}
	want("prestart after a reboot")
}

func TestChecksHook(t *testing.T) {
	spec := &services.AllocServicesSpec{AllocID: "a", Services: []services.Service{{Name: "s", PortLabel: "1", Checks: []services.Check{{Name: "c", Type: "tcp", Interval: time.Hour}}}}}
	kept := make(map[string]*api.AllocCheckStatus)
	set := services.New(services.Config{
		AllocID:     "a",
		CurrentSpec: func() *services.AllocServicesSpec { return spec },
		CurrentEnv: func(string) *taskenv.Env {
			return taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}).Build()
		},
		Registry:         new(servicestest.Registry),
		CheckResultStore: memoryCheckResultStore(kept),
		Logger:           hclog.NewNullLogger(),
	})
	h, group := NewChecksHook(set), NewGroupServicesHook(set)
	ctx := t.Context()
	for _, s := range []struct {
		when       string
		do         func() error
		runs, kept int
	}{
		{"update before prerun", func() error { return discardResult(h.UpdateAlloc(ctx, hook.AllocUpdateRequest{})) }, 0, 0},
		{"prerun", func() error { return discardResult(group.Prerun(ctx, hook.AllocPrerunRequest{})) }, 1, 1},
		{"update", func() error { return discardResult(h.UpdateAlloc(ctx, hook.AllocUpdateRequest{})) }, 1, 1},
		{"shutdown", func() error { return discardResult(h.ShutdownAlloc(ctx, hook.AllocShutdownRequest{})) }, 0, 1},
		{"prerun of another agent", func() error { return discardResult(group.Prerun(ctx, hook.AllocPrerunRequest{})) }, 1, 1},
		{"prekill", func() error { return discardResult(h.PreKill(ctx, hook.AllocPreKillRequest{})) }, 0, 0},
		{"a prerun that ends after prekill", func() error { return discardResult(group.Prerun(ctx, hook.AllocPrerunRequest{})) }, 1, 1},
		{"postrun", func() error { return discardResult(h.Postrun(ctx, hook.AllocPostrunRequest{})) }, 0, 0},
	} {
		if err := s.do(); err != nil {
			t.Errorf("%s: %v", s.when, err)
		}
		if list, _, _ := set.CheckResults(); len(list) != s.runs || len(kept) != s.kept {
			t.Errorf("%s: %d checks run and %d results are kept, want %d and %d", s.when, len(list), len(kept), s.runs, s.kept)
		}
	}
}

// registryAfterChecks counts the check results stored before an instance is registered.
type registryAfterChecks struct {
	servicestest.Registry
	results          memoryCheckResultStore
	resultsAtArrival int
}

func (r *registryAfterChecks) PutAndRemoveServices(put, remove []*api.ServiceRegistration) error {
	if len(put) > 0 {
		r.resultsAtArrival = len(r.results)
	}
	return r.Registry.PutAndRemoveServices(put, remove)
}

// An instance without a check result would count as passing.
func TestChecksHaveResultsBeforeTheInstanceIsRegistered(t *testing.T) {
	spec := &services.AllocServicesSpec{AllocID: "a", Services: []services.Service{{Name: "s", PortLabel: "1", Checks: []services.Check{{Name: "c", Type: "tcp", Interval: time.Hour}}}}}
	registry := &registryAfterChecks{results: make(memoryCheckResultStore)}
	set := services.New(services.Config{
		AllocID:     "a",
		CurrentSpec: func() *services.AllocServicesSpec { return spec },
		CurrentEnv: func(string) *taskenv.Env {
			return taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}).Build()
		},
		Registry:         registry,
		CheckResultStore: registry.results,
		Logger:           hclog.NewNullLogger(),
	})
	defer set.StopChecks(true)
	if err := discardResult(NewGroupServicesHook(set).Prerun(t.Context(), hook.AllocPrerunRequest{})); err != nil {
		t.Fatal(err)
	}
	if len(registry.ServicesByAllocation("a")) != 1 || registry.resultsAtArrival != 1 {
		t.Errorf("registered %v with %d results of checks, want 1", registry.ServicesByAllocation("a"), registry.resultsAtArrival)
	}
}

// memoryCheckResultStore is a services.CheckResultStore in memory, for one allocation.
type memoryCheckResultStore map[string]*api.AllocCheckStatus

func (r memoryCheckResultStore) StoredResultByCheckID(string) (map[string]*api.AllocCheckStatus, error) {
	return r, nil
}

func (r memoryCheckResultStore) PutCheckResult(_ string, result *api.AllocCheckStatus) error {
	r[result.ID] = result
	return nil
}

func (r memoryCheckResultStore) DeleteCheckResults(_ string, ids []string) error {
	for _, id := range ids {
		delete(r, id)
	}
	return nil
}
