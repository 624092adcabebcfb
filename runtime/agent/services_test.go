package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/docpage"
)

func TestReferenceServices(t *testing.T) {
	table := docpage.NewTable("Service", "Agents", "Starts to work", "Ends")
	for _, s := range allServices {
		from, until := "", ""
		if s.run != nil {
			from, until = s.from.String(), s.until.String()
		}
		table.AddRow(s.name, s.in.String(), from, until)
	}
	docpage.CheckPart(t, "explanation/processes.md", table.String())
}

// Services open in list order. If one fails, it and those before it are closed in reverse order, once.
func TestServicesOpenAndCloseInOrder(t *testing.T) {
	var log []string
	newService := func(name string, openErr error) service {
		return service{
			name: name,
			open: func(context.Context, *Agent) error {
				log = append(log, "open "+name)
				return openErr
			},
			close: func(*Agent) error {
				log = append(log, "close "+name)
				return errors.New(name)
			},
		}
	}
	a := &Agent{logger: hclog.NewNullLogger(), list: []service{
		newService("state", nil), {name: "volumes"}, newService("node", errors.New("no address")), newService("conditions", nil),
	}}
	if err := a.openServices(t.Context()); err == nil || err.Error() != "no address" {
		t.Errorf("open: %v", err)
	}
	if err := a.Close(); err == nil || err.Error() != "node\nstate" {
		t.Errorf("close: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if want := []string{"open state", "open node", "close node", "close state"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

// Services start when their condition is met, and end in their phase, each phase after the one before.
func TestServicesStartAndEndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log []string
		record := func(text string) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, text)
		}
		newService := func(name string, from startCondition, until shutdownPhase) service {
			return service{name: name, from: from, until: until, run: func(ctx context.Context, _ *Agent) {
				record(name + " starts")
				<-ctx.Done()
				record(name + " ends")
			}}
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(log)
			if !slices.Equal(log, want) {
				t.Errorf("%s: got %q, want %q", when, log, want)
			}
			log = nil
		}

		ctx, shutDown := context.WithCancel(t.Context())
		registered := make(chan struct{})
		a := &Agent{logger: hclog.NewNullLogger(), list: []service{
			newService("node", atOnce, shutdownRequested),
			newService("networks", afterRegistration, shutdownRequested),
			newService("reports", atOnce, allocationsReported),
			{name: "state"},
			newService("cluster", afterRegistration, agentLeaves),
			newService("timeout", atShutdown, runnersReturned),
		}}
		r := a.startServices(ctx, registered)
		expect("start", "node starts", "reports starts")
		close(registered)
		expect("registered", "cluster starts", "networks starts")
		shutDown()
		expect("shutdown", "networks ends", "node ends", "timeout starts")
		r.endPhase(shutdownRequested)
		r.endPhase(runnersReturned)
		expect("runners have returned", "timeout ends")
		r.endPhase(allocationsReported)
		expect("allocations are reported", "reports ends")
		r.endPhase(agentLeaves)
		expect("the agent leaves", "cluster ends")
	})
}

// A service does not run if its condition is not met before its phase ends.
func TestServiceThatNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, shutDown := context.WithCancel(t.Context())
		a := &Agent{logger: hclog.NewNullLogger(), list: []service{{name: "networks", from: afterRegistration, run: func(context.Context, *Agent) {
			t.Error("the service runs")
		}}}}
		r := a.startServices(ctx, make(chan struct{}))
		shutDown()
		r.endPhase(shutdownRequested)
	})
}
