package agent

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// service is one row of the agent's list. open and run call constructors and methods with what they need of the agent, so that
// no service knows the agent.
type service struct {
	name string
	in   agentKind
	// open makes the service. It may use the services before it in the list; nil if there is nothing to make.
	open func(context.Context, *Agent) error
	// close ends what open has begun, also if open has failed. It is called in reverse list order; nil if there is nothing to end.
	close func(*Agent) error

	from startCondition
	// until is the shutdown phase at which the context of run ends.
	until shutdownPhase
	// run blocks until its context ends, or until the service has nothing more to do. It may use all services; nil if the service
	// does nothing in the background.
	run func(context.Context, *Agent)
}

// agentKind is the kind of agents that have a service.
type agentKind int

const (
	anyAgent       agentKind = iota
	localAgent               // schedules for itself
	clusterAgent             // is a node of a cluster
	permanentAgent           // keeps its state
	ephemeralAgent           // deletes its state at the end, as nomad-lite run does
)

func (k agentKind) String() string {
	return [...]string{"", "without a cluster", "in a cluster", "if the state is kept", "if the state is deleted at the end"}[k]
}

// includes reports whether an agent with the configuration is of the kind k.
func (k agentKind) includes(c *Config) bool {
	switch k {
	case localAgent:
		return c.Cluster == nil
	case clusterAgent:
		return c.Cluster != nil
	case permanentAgent:
		return !c.hasEphemeralState()
	case ephemeralAgent:
		return c.hasEphemeralState()
	}
	return true
}

// startCondition is what must have happened before a service runs.
type startCondition int

const (
	atOnce            startCondition = iota
	afterRegistration                // the node is registered, and allocations without a record are adopted
	atShutdown                       // the phase shutdownRequested
)

func (s startCondition) String() string {
	return [...]string{"at once", "when the node is registered", "when a shutdown is requested"}[s]
}

// shutdownPhase is a phase in the agent's shutdown, in their order.
type shutdownPhase int

const (
	shutdownRequested   shutdownPhase = iota // the runners begin to stop, or to leave their tasks running
	runnersReturned                          // no allocation changes any more
	allocationsReported                      // the last changes are stored
	agentLeaves                              // servers have the last states
)

func (p shutdownPhase) String() string {
	return [...]string{"when a shutdown is requested", "when no allocation changes any more", "when the last changes are stored", "when servers have the last states"}[p]
}

// OpenedService is a service of an agent, with the time that Open took for it.
type OpenedService struct {
	Name         string
	OpenDuration time.Duration
}

// Services returns the agent's services in their order.
func (a *Agent) Services() []OpenedService { return slices.Clone(a.opened) }

// openServices opens the services in list order, until one fails.
func (a *Agent) openServices(ctx context.Context) error {
	for _, s := range a.list {
		began := time.Now()
		a.opened = append(a.opened, OpenedService{Name: s.name})
		if s.open == nil {
			continue
		}
		err := s.open(ctx, a)
		d := time.Since(began)
		a.opened[len(a.opened)-1].OpenDuration = d
		a.logger.Debug("service opened", "service", s.name, "duration", d, "error", err)
		if err != nil {
			return err
		}
	}
	return nil
}

// closeServices closes the opened services in reverse list order.
func (a *Agent) closeServices() error {
	var errs []error
	for ; len(a.opened) > 0; a.opened = a.opened[:len(a.opened)-1] {
		if s := a.list[len(a.opened)-1]; s.close != nil {
			errs = append(errs, s.close(a))
		}
	}
	return errors.Join(errs...)
}

// runningServices are a running agent's services.
type runningServices struct {
	end [agentLeaves + 1]context.CancelFunc
	wg  [agentLeaves + 1]sync.WaitGroup
}

// startServices starts the services in list order. Those until shutdownRequested end with ctx. The caller must call endPhase
// for each phase, in their order, when ctx has ended. registered is closed when the node is registered.
func (a *Agent) startServices(ctx context.Context, registered <-chan struct{}) *runningServices {
	r := new(runningServices)
	var contexts [agentLeaves + 1]context.Context
	contexts[shutdownRequested], r.end[shutdownRequested] = ctx, func() {}
	for phase := runnersReturned; phase <= agentLeaves; phase++ {
		contexts[phase], r.end[phase] = context.WithCancel(context.WithoutCancel(ctx))
	}
	immediately := make(chan struct{})
	close(immediately)
	begin := [...]<-chan struct{}{atOnce: immediately, afterRegistration: registered, atShutdown: ctx.Done()}
	for _, s := range a.list {
		if s.run == nil {
			continue
		}
		ctx := contexts[s.until]
		r.wg[s.until].Go(func() {
			select {
			case <-begin[s.from]:
			case <-ctx.Done():
				return
			}
			start := time.Now()
			a.logger.Debug("service starts", "service", s.name)
			s.run(ctx, a)
			a.logger.Debug("service has ended", "service", s.name, "duration", time.Since(start))
		})
	}
	return r
}

// endPhase ends the services until a phase, and blocks until they have returned.
func (r *runningServices) endPhase(phase shutdownPhase) {
	r.end[phase]()
	r.wg[phase].Wait()
}
