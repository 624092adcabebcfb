package servicelist

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Service is one row of a list. Open and Run call constructors and methods with what they need of T, the value that has what the
// services of the list have made.
type Service[T any] struct {
	Name string
	In   Agents
	// Open makes the service. It may use the services before it in the list; nil if there is nothing to make.
	Open func(context.Context, T) error
	// Close ends what Open has begun, also if Open has failed. It is called in reverse list order; nil if there is nothing to end.
	Close func(T) error

	From StartCondition
	// Until is the shutdown phase at which the context of Run ends.
	Until ShutdownPhase
	// Run blocks until its context ends, or until the service has nothing more to do. It may use all services; nil if the service
	// does nothing in the background.
	Run func(context.Context, T)
}

// Agents are the agents that have a service.
type Agents int

const (
	AnyAgent       Agents = iota
	LocalAgent            // schedules for itself
	ClusterAgent          // is a node of a cluster
	PermanentAgent        // keeps its state
	EphemeralAgent        // deletes its state at the end, as nomad-lite run does
)

func (a Agents) String() string {
	return [...]string{"", "without a cluster", "in a cluster", "if the state is kept", "if the state is deleted at the end"}[a]
}

// StartCondition is what must have happened before a service runs.
type StartCondition int

const (
	AtOnce            StartCondition = iota
	AfterRegistration                // the node is registered, and allocations without a record are adopted
	AtShutdown                       // the phase ShutdownRequested
)

func (s StartCondition) String() string {
	return [...]string{"at once", "when the node is registered", "when a shutdown is requested"}[s]
}

// ShutdownPhase is a phase in an agent's shutdown, in their order.
type ShutdownPhase int

const (
	ShutdownRequested   ShutdownPhase = iota // the runners begin to stop, or to leave their tasks running
	RunnersReturned                          // allocations no longer change
	AllocationsReported                      // the last changes are stored
	AgentLeaves                              // servers have the last states
)

func (p ShutdownPhase) String() string {
	return [...]string{"when a shutdown is requested", "when no allocation changes any more", "when the last changes are stored", "when servers have the last states"}[p]
}

// Opened is an opened service, with the time that its Open took.
type Opened struct {
	Name     string
	Duration time.Duration
}

// List opens, runs and closes services, all of the same T. Its methods are called one after the other.
type List[T any] struct {
	services []Service[T]
	opened   []Opened // the first services, until they are closed
	logger   hclog.Logger
}

// NewList returns a list of services that are not open.
func NewList[T any](services []Service[T], logger hclog.Logger) *List[T] {
	return &List[T]{services: services, logger: logger}
}

// Opened returns the open services in list order.
func (l *List[T]) Opened() []Opened { return l.opened }

// Open opens the services in list order, until one fails. The caller must call Close, also after an error.
func (l *List[T]) Open(ctx context.Context, t T) error {
	for _, s := range l.services {
		began := time.Now()
		l.opened = append(l.opened, Opened{Name: s.Name})
		if s.Open == nil {
			continue
		}
		err := s.Open(ctx, t)
		d := time.Since(began)
		l.opened[len(l.opened)-1].Duration = d
		l.logger.Debug("service opened", "service", s.Name, "duration", d, "error", err)
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes the opened services in reverse list order. It may be called twice.
func (l *List[T]) Close(t T) error {
	var errs []error
	for ; len(l.opened) > 0; l.opened = l.opened[:len(l.opened)-1] {
		if s := l.services[len(l.opened)-1]; s.Close != nil {
			errs = append(errs, s.Close(t))
		}
	}
	return errors.Join(errs...)
}

// Running are the running services of a list.
type Running struct {
	end [AgentLeaves + 1]context.CancelFunc
	wg  [AgentLeaves + 1]sync.WaitGroup
}

// Start starts the services in list order. Those until ShutdownRequested end with ctx. The caller must call EndPhase
// for each phase, in their order, when ctx has ended. registered is closed when the node is registered.
func (l *List[T]) Start(ctx context.Context, t T, registered <-chan struct{}) *Running {
	r := new(Running)
	var contexts [AgentLeaves + 1]context.Context
	contexts[ShutdownRequested], r.end[ShutdownRequested] = ctx, func() {}
	for phase := RunnersReturned; phase <= AgentLeaves; phase++ {
		contexts[phase], r.end[phase] = context.WithCancel(context.WithoutCancel(ctx))
	}
	immediately := make(chan struct{})
	close(immediately)
	begin := [...]<-chan struct{}{AtOnce: immediately, AfterRegistration: registered, AtShutdown: ctx.Done()}
	for _, s := range l.services {
		if s.Run == nil {
			continue
		}
		ctx := contexts[s.Until]
		r.wg[s.Until].Go(func() {
			select {
			case <-begin[s.From]:
			case <-ctx.Done():
				return
			}
			start := time.Now()
			l.logger.Debug("service starts", "service", s.Name)
			s.Run(ctx, t)
			l.logger.Debug("service has ended", "service", s.Name, "duration", time.Since(start))
		})
	}
	return r
}

// EndPhase ends the services until a phase, and blocks until they have returned.
func (r *Running) EndPhase(phase ShutdownPhase) {
	r.end[phase]()
	r.wg[phase].Wait()
}
