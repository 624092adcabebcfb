package servicelist

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
)

// made is what services make.
type made struct{}

// Services open in list order. If one fails, it and those before it are closed in reverse order, once.
func TestServicesOpenAndCloseInOrder(t *testing.T) {
	var log []string
	newService := func(name string, openErr error) Service[*made] {
		return Service[*made]{
			Name: name,
			Open: func(context.Context, *made) error {
				log = append(log, "open "+name)
				return openErr
			},
			Close: func(*made) error {
				log = append(log, "close "+name)
				return errors.New(name)
			},
		}
	}
	l := NewList([]Service[*made]{
		newService("state", nil), {Name: "volumes"}, newService("node", errors.New("no address")), newService("conditions", nil),
	}, hclog.NewNullLogger())
	if err := l.Open(t.Context(), new(made)); err == nil || err.Error() != "no address" {
		t.Errorf("open: %v", err)
	}
	if err := l.Close(new(made)); err == nil || err.Error() != "node\nstate" {
		t.Errorf("close: %v", err)
	}
	if err := l.Close(new(made)); err != nil {
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
		newService := func(name string, from StartCondition, until ShutdownPhase) Service[*made] {
			return Service[*made]{Name: name, From: from, Until: until, Run: func(ctx context.Context, _ *made) {
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
		l := NewList([]Service[*made]{
			newService("node", AtOnce, ShutdownRequested),
			newService("networks", AfterRegistration, ShutdownRequested),
			newService("reports", AtOnce, AllocationsReported),
			{Name: "state"},
			newService("cluster", AfterRegistration, AgentLeaves),
			newService("timeout", AtShutdown, RunnersReturned),
		}, hclog.NewNullLogger())
		r := l.Start(ctx, new(made), registered)
		expect("start", "node starts", "reports starts")
		close(registered)
		expect("registered", "cluster starts", "networks starts")
		shutDown()
		expect("shutdown", "networks ends", "node ends", "timeout starts")
		r.EndPhase(ShutdownRequested)
		r.EndPhase(RunnersReturned)
		expect("runners have returned", "timeout ends")
		r.EndPhase(AllocationsReported)
		expect("allocations are reported", "reports ends")
		r.EndPhase(AgentLeaves)
		expect("the agent leaves", "cluster ends")
	})
}

// A service does not run if its condition is not met before its phase ends.
func TestServiceThatNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, shutDown := context.WithCancel(t.Context())
		l := NewList([]Service[*made]{{Name: "networks", From: AfterRegistration, Run: func(context.Context, *made) {
			t.Error("the service runs")
		}}}, hclog.NewNullLogger())
		r := l.Start(ctx, new(made), make(chan struct{}))
		shutDown()
		r.EndPhase(ShutdownRequested)
	})
}
