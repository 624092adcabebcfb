package agent

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/docpage"
)

func TestReferenceServices(t *testing.T) {
	table := docpage.NewTable("Service", "Starts", "Ends")
	directory := &dataDirectory{isStateEphemeral: true}
	local := (&Agent{dataDirectory: directory}).services(nil, nil)
	onlyInCluster := slices.DeleteFunc((&Agent{dataDirectory: directory, cluster: &clusterNode{}}).services(nil, nil), func(s service) bool {
		return slices.ContainsFunc(local, func(l service) bool { return l.name == s.name })
	})
	for _, s := range slices.Concat(local, onlyInCluster) {
		table.AddRow(s.name, s.from.String(), s.until.String())
	}
	docpage.CheckPart(t, "explanation/processes.md", table.String())
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
			return service{name, from, until, func(ctx context.Context) {
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
		r := startServices(ctx, []service{
			newService("node", atOnce, shutdownRequested),
			newService("networks", afterRegistration, shutdownRequested),
			newService("reports", atOnce, allocationsReported),
			newService("cluster", afterRegistration, agentLeaves),
			newService("timeout", atShutdown, runnersReturned),
		}, registered, hclog.NewNullLogger())
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
		r := startServices(ctx, []service{{"networks", afterRegistration, shutdownRequested, func(context.Context) {
			t.Error("the service runs")
		}}}, make(chan struct{}), hclog.NewNullLogger())
		shutDown()
		r.endPhase(shutdownRequested)
	})
}
