package evaluators

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// Pool evaluates templates in evaluator processes, which it starts on demand. It is safe for concurrent use.
type Pool struct {
	launcher         *Launcher
	limitsWhenShared evaluationLimits // for a template in an evaluator that others use, too
	limitsWhenAlone  evaluationLimits // for a template in an evaluator of its own
	idleTime         time.Duration
	sharedRuns       *turns
	aloneRuns        *turns

	mu   sync.Mutex
	idle []*evaluator
}

// evaluationLimits are what one evaluation may use.
type evaluationLimits struct {
	memory uint64        // bytes
	cpu    time.Duration // processor time
	wall   time.Duration // elapsed time; ends an evaluator that gets no processor time
	nice   int
}

// With two shared evaluators, one slow template does not block the others. More would cost memory.
const (
	maxShared = 2
	maxAlone  = 2
)

// idleTime is the time after which an evaluator without an evaluation exits.
const idleTime = 10 * time.Second

// sharedEvaluatorCPU is the processor time of a shared evaluator for all its evaluations. The kernel kills the evaluator at this limit,
// and the pool repeats the interrupted evaluation in a new one.
const sharedEvaluatorCPU = 10 * time.Minute

// kernelLimitMargin is the processor time by which the kernel's limit is above that of an evaluation alone, so that this process
// sees the limit first and can tell it from the limit of memory.
const kernelLimitMargin = 5 * time.Second

// NewPool returns a pool whose evaluators a launcher starts.
func NewPool(l *Launcher) *Pool {
	return &Pool{
		launcher: l, idleTime: idleTime,
		limitsWhenShared: evaluationLimits{memory: 256 << 20, cpu: 250 * time.Millisecond, wall: 10 * time.Second},
		limitsWhenAlone:  evaluationLimits{memory: 512 << 20, cpu: 30 * time.Second, wall: 5 * time.Minute, nice: 19},
		sharedRuns:       newTurns(maxShared), aloneRuns: newTurns(maxAlone),
	}
}

// LimitError reports that an evaluation has used up its limits.
type LimitError struct{ Limit string }

func (e *LimitError) Error() string { return "the template takes more than " + e.Limit }

// UnavailableError reports that the machine could not evaluate a template, for example because it has no processes left. A later
// evaluation can succeed.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return "template evaluator: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// errExited is the error of an evaluation whose evaluator has exited.
var errExited = errors.New("the template evaluator has exited")

// Evaluate evaluates a template in a shared evaluator. It blocks while both evaluators are busy; jobs that wait take turns. The error is a
// LimitError if the template must be evaluated alone, an UnavailableError, or ctx's error. If an evaluator exits during the
// evaluation, Evaluate repeats the evaluation once. If the second evaluator exits too, the error is a LimitError for memory.
func (p *Pool) Evaluate(ctx context.Context, r *evaluate.Request) (*evaluate.Result, error) {
	if err := p.sharedRuns.acquire(ctx, job{r.Namespace, r.JobID}); err != nil {
		return nil, err
	}
	defer p.sharedRuns.release()
	return evaluateTwice(ctx, r, p.limitsWhenShared, p.takeOrStart, p.release)
}

// evaluateTwice evaluates a template in an evaluator that start returns, and passes the evaluator to release. If the evaluator exits, it
// tries again with a new process. If that exits, too, the cause is the template.
func evaluateTwice(ctx context.Context, r *evaluate.Request, lim evaluationLimits, start func(mustBeNew bool) (*evaluator, error), release func(*evaluator)) (*evaluate.Result, error) {
	var lastErr error
	for _, mustBeNew := range []bool{false, true} {
		e, err := start(mustBeNew)
		if err != nil {
			return nil, err
		}
		result, err := e.evaluate(ctx, r, lim)
		if err == nil {
			release(e)
			return result, nil
		}
		e.kill()
		if !errors.Is(err, errExited) {
			return nil, err
		}
		lastErr = err
	}
	if unavailable, ok := errors.AsType[*UnavailableError](lastErr); ok {
		return nil, unavailable
	}
	return nil, &LimitError{Limit: lim.memoryText()}
}

// EvaluateAlone is Evaluate in an evaluator of its own, which has higher limits and less priority, and exits afterwards.
func (p *Pool) EvaluateAlone(ctx context.Context, r *evaluate.Request) (*evaluate.Result, error) {
	if err := p.aloneRuns.acquire(ctx, job{r.Namespace, r.JobID}); err != nil {
		return nil, err
	}
	defer p.aloneRuns.release()
	start := func(bool) (*evaluator, error) {
		return startWithLimits(p.launcher, limits{Memory: p.limitsWhenAlone.memory, CPU: p.limitsWhenAlone.cpu + kernelLimitMargin, Nice: p.limitsWhenAlone.nice})
	}
	return evaluateTwice(ctx, r, p.limitsWhenAlone, start, (*evaluator).kill)
}

// AloneLimits describes the limits of EvaluateAlone for users.
func (p *Pool) AloneLimits() string {
	return p.limitsWhenAlone.memoryText() + ", " + p.limitsWhenAlone.cpuText()
}

func (l evaluationLimits) memoryText() string { return fmt.Sprintf("%d MiB of memory", l.memory>>20) }

func (l evaluationLimits) cpuText() string { return fmt.Sprintf("%v of processor time", l.cpu) }

// takeOrStart returns an idle evaluator, or a new one.
func (p *Pool) takeOrStart(mustBeNew bool) (*evaluator, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 && !mustBeNew {
		e := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		if e.idleTimer.Stop() {
			return e, nil
		}
		e.kill() // the timer's function has not found it, and does nothing
	} else {
		p.mu.Unlock()
	}
	return startWithLimits(p.launcher, limits{Memory: p.limitsWhenShared.memory, CPU: sharedEvaluatorCPU, Nice: p.limitsWhenShared.nice})
}

// release keeps an evaluator for the next evaluation, and kills it after idleTime without one.
func (p *Pool) release(e *evaluator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, e)
	e.idleTimer = time.AfterFunc(p.idleTime, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i, other := range p.idle {
			if other == e {
				p.idle = append(p.idle[:i], p.idle[i+1:]...)
				e.kill()
				return
			}
		}
	})
}

// evaluator is one process that evaluates templates, one after the other.
type evaluator struct {
	conn      *messageConn
	lifeline  *os.File
	pid       int
	idleTimer *time.Timer
}

func startWithLimits(l *Launcher, lim limits) (*evaluator, error) {
	conn, lifeline, pid, err := l.start()
	if err != nil {
		return nil, &UnavailableError{err}
	}
	e := &evaluator{conn: newMessageConn(conn), lifeline: lifeline, pid: pid}
	if err := e.setLimits(lim); err != nil {
		e.kill()
		return nil, &UnavailableError{err}
	}
	return e, nil
}

// setLimits sends the limits to a new evaluator, and blocks until the evaluator has set them.
func (e *evaluator) setLimits(lim limits) error {
	if err := e.conn.send(lim); err != nil {
		return err
	}
	if err := e.conn.conn.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	var failure string
	if err := e.conn.receive(&failure); err != nil {
		return err
	}
	if failure != "" {
		return errors.New(failure)
	}
	return e.conn.conn.SetReadDeadline(time.Time{})
}

// startTimeout is the time in which an evaluator must set its limits. A machine at its limits takes seconds to start a program.
const startTimeout = 30 * time.Second

func (e *evaluator) kill() {
	e.conn.conn.Close()
	e.lifeline.Close()
}

// watchInterval is the interval at which the processor time of an evaluation is read.
const watchInterval = 50 * time.Millisecond

// evaluate evaluates a template. After an error the caller must kill the evaluator.
func (e *evaluator) evaluate(ctx context.Context, r *evaluate.Request, lim evaluationLimits) (*evaluate.Result, error) {
	type outcome struct {
		result *evaluate.Result
		err    error
	}
	done := make(chan outcome, 1)
	usedBefore, err := e.processorTime()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errExited, &UnavailableError{err})
	}
	go func() {
		result := &evaluate.Result{}
		err := e.conn.send(r)
		if err == nil {
			err = e.conn.receive(result)
		}
		done <- outcome{result, err}
	}()
	started := time.Now()
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case o := <-done:
			switch {
			case errors.Is(o.err, errMessageTooLarge):
				return nil, &LimitError{Limit: fmt.Sprintf("%d MiB of data", maxMessageSize>>20)}
			case errors.Is(o.err, os.ErrDeadlineExceeded): // of the request
				return nil, &UnavailableError{o.err}
			case o.err != nil:
				return nil, fmt.Errorf("%w: %w", errExited, o.err)
			}
			return o.result, nil
		case <-ticker.C:
			// An error means that the process has exited: its connection ends.
			if used, err := e.processorTime(); err == nil && used-usedBefore > lim.cpu {
				return nil, &LimitError{Limit: lim.cpuText()}
			}
			if time.Since(started) > lim.wall {
				return nil, &UnavailableError{fmt.Errorf("not evaluated within %v: the machine has too little processor time", lim.wall)}
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// processorTime returns the processor time of the process.
func (e *evaluator) processorTime() (time.Duration, error) {
	stat, err := osprocess.ReadStat(e.pid)
	if err != nil {
		return 0, fmt.Errorf("read the processor time of the evaluator: %w", err)
	}
	return osprocess.TicksToDuration(stat.UserTime + stat.SystemTime), nil
}
