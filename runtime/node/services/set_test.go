package services

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
)

func wantCalls(t *testing.T, r *recordingRegistry, when string, want ...string) {
	t.Helper()
	if got := r.takeCalls(); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

func TestRegistration(t *testing.T) {
	group := Service{Name: "${NOMAD_JOB_NAME}-api", PortLabel: "http", Tags: []string{"${attr.kernel.name}", "b"}}
	task := Service{Task: "t", Name: "db", PortLabel: "5432", AddressMode: "driver", Tags: []string{"${COLOUR}"}, CanaryTags: []string{"canary-${COLOUR}"}}
	w := newTestSet(t, group, task)
	w.setVar("t", "COLOUR", "red")

	if err := w.RegisterServicesOf(core.GroupWorkload, nil); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "the group", "+group-g-j-api-http")
	if err := w.RegisterServicesOf("t", &driver.NetworkOverride{Addr: "172.17.0.5"}); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "the task", "+t-db-5432")

	got := w.registry.ServicesByAllocation(testAllocID)
	if len(got) != 2 {
		t.Fatalf("%d registrations, want 2", len(got))
	}
	api := got[0]
	if api.ID != "_nomad-task-"+testAllocID+"-group-g-j-api-http" || api.ServiceName != "j-api" || api.Namespace != "default" ||
		api.NodeID != "node-id" || api.Datacenter != "dc1" || api.JobID != "j" || api.AllocID != testAllocID ||
		api.Address != "10.0.0.1" || api.Port != 20000 || !slices.Equal(api.Tags, []string{"linux", "b"}) {
		t.Errorf("group service: %+v", api)
	}
	if db := got[1]; db.Address != "172.17.0.5" || db.Port != 5432 || !slices.Equal(db.Tags, []string{"red"}) {
		t.Errorf("task service: %+v", db)
	}
}

func TestCanaryTags(t *testing.T) {
	tagged := Service{Task: "t", Name: "db", PortLabel: "http", Tags: []string{"a"}, CanaryTags: []string{"c"}}
	untagged := Service{Task: "t", Name: "web", PortLabel: "http", Tags: []string{"a"}}
	w := newTestSet(t, tagged, untagged)
	w.spec.IsCanary = true
	tags := func() string {
		var all []string
		for _, s := range w.registry.ServicesByAllocation(testAllocID) {
			all = append(all, s.ServiceName+"="+strings.Join(s.Tags, ","))
		}
		return strings.Join(all, " ")
	}
	if err := w.RegisterServicesOf("t", nil); err != nil {
		t.Fatal(err)
	}
	if got, want := tags(), "db=c web=a"; got != want {
		t.Errorf("canary: %s, want %s", got, want)
	}
	wantCalls(t, w.registry, "start", "+t-db-http +t-web-http")

	promoted := *w.spec
	promoted.IsCanary = false
	w.spec = &promoted
	if err := w.UpdateRegistrations("t"); err != nil {
		t.Fatal(err)
	}
	if got, want := tags(), "db=a web=a"; got != want {
		t.Errorf("promoted: %s, want %s", got, want)
	}
	wantCalls(t, w.registry, "promotion", "+t-db-http")
}

// New services are registered before old services are removed, and unchanged services are not
// written.
func TestUpdateOfRegistrations(t *testing.T) {
	w := newTestSet(t, Service{Name: "a", PortLabel: "http"}, Service{Name: "b", PortLabel: "http"})
	if err := w.UpdateRegistrations(core.GroupWorkload); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "before it is up")
	if err := w.RegisterServicesOf(core.GroupWorkload, nil); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "start", "+group-g-a-http +group-g-b-http")
	if err := w.UpdateRegistrations(core.GroupWorkload); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "nothing new")

	w.setServices(Service{Name: "b", PortLabel: "http", Tags: []string{"new"}}, Service{Name: "c", PortLabel: "http"})
	if err := w.UpdateRegistrations(core.GroupWorkload); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "a new version", "+group-g-b-http +group-g-c-http -group-g-a-http")

	w.setServices(Service{Name: "b", PortLabel: "nope"})
	if err := w.UpdateRegistrations(core.GroupWorkload); err == nil || err.Error() != `register services: service "b": invalid port "nope": port label not found` {
		t.Errorf("a wrong port: %v", err)
	}
	wantCalls(t, w.registry, "a wrong version changes nothing")

	if err := w.DeregisterServicesOfWithRetry(t.Context(), core.GroupWorkload); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "end", "-group-g-b-http -group-g-c-http")
	if err := errors.Join(w.DeregisterServicesOfWithRetry(t.Context(), core.GroupWorkload), w.UpdateRegistrations(core.GroupWorkload), w.DeregisterAllWithRetry(t.Context())); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "after the end")
}

// Before a task is restarted, its services are removed. They are registered again with the new process (rule RS-043 in
// docs/reference/rules.md).
func TestTaskRestartReregisters(t *testing.T) {
	w := newTestSet(t, testService("t"), testService("u"))
	for range 2 {
		if err := w.RegisterServicesOf("t", nil); err != nil {
			t.Fatal(err)
		}
		wantCalls(t, w.registry, "start", "+t-web-http")
		if err := errors.Join(w.DeregisterServicesOfWithRetry(t.Context(), "t"), w.DeregisterServicesOfWithRetry(t.Context(), "t")); err != nil {
			t.Fatal(err)
		}
		wantCalls(t, w.registry, "end, once each cycle", "-t-web-http")
	}
}

func TestRegistrationErrors(t *testing.T) {
	bad := Service{Task: "t", Name: "svc-${BAD}", PortLabel: "http"}
	w := newTestSet(t, bad, Service{Name: "a", PortLabel: "http", AddressMode: "alloc"})
	w.setVar("t", "BAD", "a_b")
	const invalidNameText = `service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be no longer than 63 characters: "svc-a_b": it contains '_', and only letters, digits and dashes are allowed`
	if err := w.ValidateServiceNames("t"); err == nil || err.Error() != invalidNameText {
		t.Errorf("validate: %v", err)
	}
	if err := w.ValidateServiceNames(core.GroupWorkload); err != nil {
		t.Errorf("validate group: %v", err)
	}
	if err := w.RegisterServicesOf("t", nil); err == nil || err.Error() != `register services: service "svc-${BAD}": `+invalidNameText {
		t.Errorf("register: %v", err)
	}
	if err := w.RegisterServicesOf(core.GroupWorkload, nil); err == nil || err.Error() != `register services: service "a": cannot use address_mode="alloc": no allocation network status reported` {
		t.Errorf("register group: %v", err)
	}
	w.registry.remainingFailures = 1
	w.setServices(Service{Name: "a", PortLabel: "http"})
	if err := w.RegisterServicesOf(core.GroupWorkload, nil); err == nil || err.Error() != "register services: disk full" {
		t.Errorf("register with a full disk: %v", err)
	}
	wantCalls(t, w.registry, "errors", "fail")
	// A failed registration succeeds with the next update.
	if err := w.UpdateRegistrations(core.GroupWorkload); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "update", "+group-g-a-http")
}

func TestRemovalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestSet(t, testService(core.GroupWorkload))
		if err := w.RegisterServicesOf(core.GroupWorkload, nil); err != nil {
			t.Fatal(err)
		}
		w.registry.remainingFailures = 6
		begin := time.Now()
		if err := w.DeregisterServicesOfWithRetry(t.Context(), core.GroupWorkload); err != nil {
			t.Fatal(err)
		}
		// the pauses are 100, 200, 400, 800, 1000 and 1000 ms
		if got, want := time.Since(begin), 3500*time.Millisecond; got != want {
			t.Errorf("removed after %v, want %v", got, want)
		}

		// Deregister makes at least one attempt, even if its context is done; the next call
		// tries again.
		if err := w.RegisterServicesOf(core.GroupWorkload, nil); err != nil {
			t.Fatal(err)
		}
		w.registry.takeCalls()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		w.registry.remainingFailures = 1
		if err := w.DeregisterServicesOfWithRetry(over, core.GroupWorkload); err == nil || err.Error() != "deregister services: disk full" {
			t.Errorf("deregister: %v", err)
		}
		wantCalls(t, w.registry, "one attempt", "fail")
		if err := w.DeregisterAllWithRetry(over); err != nil {
			t.Fatal(err)
		}
		wantCalls(t, w.registry, "clear", "-group-g-web-http")
	})
}

// The next agent keeps an earlier agent's unchanged registrations, and removes the others.
func TestRegistrationsOfAnEarlierAgent(t *testing.T) {
	w := newTestSet(t, testService(core.GroupWorkload), testService("t"), Service{Task: "gone", Name: "x", PortLabel: "http"})
	for _, task := range []string{core.GroupWorkload, "t", "gone"} {
		if err := w.RegisterServicesOf(task, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.registry.takeCalls()

	next := w.newSet()
	if err := errors.Join(next.RegisterServicesOf(core.GroupWorkload, nil), next.RegisterServicesOf("t", nil)); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "nothing has changed")

	w.setServices(Service{Name: "new", PortLabel: "http"}, testService("t"))
	next = w.newSet()
	if err := next.RegisterServicesOf(core.GroupWorkload, nil); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "another version", "+group-g-new-http -gone-x-http -group-g-web-http")
	if err := next.DeregisterServicesOfWithRetry(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, w.registry, "a task that has died meanwhile", "-t-web-http")
}

// A prefix may match two workloads; the longer one counts.
func TestWorkloadOfRegistration(t *testing.T) {
	spec := testSpec(Service{Task: "a", Name: "x"}, Service{Task: "a-b", Name: "x"}, Service{Name: "y"})
	for id, want := range map[string]string{
		"a-x-http":       "a",
		"a-b-x-http":     "a-b",
		"group-g-y-http": core.GroupWorkload,
		"z-x-http":       core.GroupWorkload,
	} {
		if got := workloadOfRegistrationID(spec, "_nomad-task-"+testAllocID+"-"+id); got != want {
			t.Errorf("%s belongs to %q, want %q", id, got, want)
		}
	}
}
