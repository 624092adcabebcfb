package services_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

var (
	_ services.Registry         = (*store.Store)(nil)
	_ services.CheckResultStore = (*store.Store)(nil)
)

const allocID = "11111111-2222-3333-4444-555555555555"

// TestEndToEnd runs checks over real sockets, and stores their results and the registrations in a
// real store.
func TestEndToEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	db, err := store.Open(t.Context(), store.Config{StateFilePath: t.TempDir() + "/state.db", Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutScheduledAllocation(&api.Allocation{ID: allocID, Namespace: "default"})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var serverBroken atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if serverBroken.Load() || r.Host != "web.example" {
			http.Error(w, "broken "+r.Host, http.StatusInternalServerError)
		}
	}))
	spec := localSpec(t, server.Listener.Addr())
	newSet := func() *services.AllocServices {
		return services.New(services.Config{
			AllocID: allocID, AllocName: "j.g[0]",
			CurrentSpec: func() *services.AllocServicesSpec { return spec },
			CurrentEnv: func(task string) *taskenv.Env {
				return taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{Ports: spec.Ports}, taskenv.Task{Name: task}).Build()
			},
			Registry: db, CheckResultStore: db, Logger: hclog.NewNullLogger(),
		})
	}
	set := newSet()
	if err := set.RegisterServicesOf("t", nil); err != nil {
		t.Fatal(err)
	}
	set.StartChecks()
	awaitResults(t, set, "http success 200 nomad: http ok", "tcp success 0 nomad: tcp ok")

	registered := db.ServicesByAllocation(allocID)
	if len(registered) != 1 || registered[0].Port != spec.Ports[0].HostPort || registered[0].CreateIndex == 0 {
		t.Fatalf("registered: %+v", registered)
	}
	serverBroken.Store(true)
	awaitResults(t, set, "http failure 500 broken web.example\n", "tcp success 0 nomad: tcp ok")

	// The next agent uses the same store.
	set.StopChecks(false)
	index := db.Snapshot().Index() // the failure's result is stored
	set = newSet()
	if err := set.RegisterServicesOf("t", nil); err != nil {
		t.Fatal(err)
	}
	set.StartChecks()
	if got := resultTexts(set); len(got) != 2 || !strings.HasPrefix(got[0], "http failure 500") {
		t.Errorf("after a restart: %q", got)
	}
	if got := db.Snapshot().Index(); got != index {
		t.Errorf("a restart changed the index from %d to %d", index, got)
	}
	server.Close()
	awaitResults(t, set, "http failure 0", "tcp failure 0")

	set.StopChecks(true)
	if err := set.DeregisterServicesOfWithRetry(context.Background(), "t"); err != nil {
		t.Fatal(err)
	}
	results, err := db.StoredResultByCheckID(allocID)
	if left := db.ServicesByAllocation(allocID); len(left) > 0 || len(results) > 0 || err != nil {
		t.Errorf("left: %v, %v, %v", left, results, err)
	}

	// Registrations not removed by a runner are removed with the allocation's records.
	if err := newSet().RegisterServicesOf("t", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Update(t.Context(), func(tx *store.Txn) error {
		tx.DeleteRunnerRecordsAndServices(allocID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if left := db.ServicesByAllocation(allocID); len(left) > 0 {
		t.Errorf("left of a forgotten allocation: %v", left)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	awaitGoroutines(t, before)
}

func localSpec(t *testing.T, addr net.Addr) *services.AllocServicesSpec {
	host, port, err := net.SplitHostPort(addr.String())
	number, err2 := strconv.Atoi(port)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	check := func(kind string) services.Check {
		return services.Check{
			Name: kind, Type: kind, Path: "/", Interval: 60 * time.Millisecond, Timeout: 2 * time.Second,
			Header: map[string][]string{"Host": {"web.example"}},
		}
	}
	return &services.AllocServicesSpec{
		AllocID: allocID, AllocName: "j.g[0]", Namespace: "default", JobID: "j", Group: "g",
		Ports:    []taskenv.Port{{Label: "http", HostPort: number, HostIP: host}},
		Services: []services.Service{{Task: "t", Name: "web", PortLabel: "http", Checks: []services.Check{check("http"), check("tcp")}}},
	}
}

func resultTexts(set *services.AllocServices) []string {
	results, _, _ := set.CheckResults()
	var list []string
	for _, r := range results {
		list = append(list, strings.Join([]string{r.Check, r.Status, strconv.Itoa(r.StatusCode), r.Output}, " "))
	}
	return list
}

// awaitResults waits until the results start with these words.
func awaitResults(t *testing.T, set *services.AllocServices, want ...string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		_, _, changed := set.CheckResults()
		got := resultTexts(set)
		match := len(got) == len(want)
		for i := range got {
			match = match && strings.HasPrefix(got[i], want[i])
		}
		if match {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("results %q, want %q", got, want)
		}
	}
}

// awaitGoroutines waits until no more goroutines run than before.
func awaitGoroutines(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}
