package agent

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// service is a part of the agent that works in the background while the agent runs.
type service struct {
	name string
	from startCondition
	// until is the shutdown phase at which the context of run ends.
	until shutdownPhase
	// run blocks until its context ends, or until the service has nothing more to do.
	run func(context.Context)
}

// startCondition is what must have happened before a service starts.
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

// runningServices are a running agent's services.
type runningServices struct {
	end [agentLeaves + 1]context.CancelFunc
	wg  [agentLeaves + 1]sync.WaitGroup
}

// startServices starts services in list order. Those until shutdownRequested end with ctx. The caller must call endPhase for each
// phase, in their order, when ctx has ended. registered is closed when the node is registered.
func startServices(ctx context.Context, list []service, registered <-chan struct{}, logger hclog.Logger) *runningServices {
	r := new(runningServices)
	var contexts [agentLeaves + 1]context.Context
	contexts[shutdownRequested], r.end[shutdownRequested] = ctx, func() {}
	for phase := runnersReturned; phase <= agentLeaves; phase++ {
		contexts[phase], r.end[phase] = context.WithCancel(context.WithoutCancel(ctx))
	}
	immediately := make(chan struct{})
	close(immediately)
	begin := [...]<-chan struct{}{atOnce: immediately, afterRegistration: registered, atShutdown: ctx.Done()}
	for _, s := range list {
		ctx := contexts[s.until]
		r.wg[s.until].Go(func() {
			select {
			case <-begin[s.from]:
			case <-ctx.Done():
				return
			}
			start := time.Now()
			logger.Debug("service starts", "service", s.name)
			s.run(ctx)
			logger.Debug("service has ended", "service", s.name, "duration", time.Since(start))
		})
	}
	return r
}

// endPhase ends the services until a phase, and blocks until they have returned.
func (r *runningServices) endPhase(phase shutdownPhase) {
	r.end[phase]()
	r.wg[phase].Wait()
}
