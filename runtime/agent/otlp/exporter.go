package otlp

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

const (
	// maxQueue is the number of spans that wait for the collector. A span has less than 4 kB, usually 0.5 kB.
	maxQueue = 4096
	// maxBatch is the number of spans in a request. The collector accepts 4 MB by default.
	maxBatch = 512

	requestTimeout = 10 * time.Second
	maxRetryDelay  = 30 * time.Second

	// dropLogInterval is the minimum time between two messages about dropped spans.
	dropLogInterval = time.Minute
)

// These times are shorter in tests.
var (
	// batchDelay is how long the first span of a batch waits for others. An agent that is killed loses the
	// spans of this time.
	batchDelay = time.Second
	// closeTimeout limits how long Close waits for the collector.
	closeTimeout = 2 * time.Second

	minRetryDelay = time.Second
)

// Agent describes the agent that exports spans and metrics.
type Agent struct {
	Version                                    string
	NodeID, NodeName, Datacenter, Region, Host string
}

// Exporter sends spans to a collector. Its methods may be called concurrently.
type Exporter struct {
	config   Config
	resource *resourcepb.Resource
	scope    string // version of the instrumentation scope
	sender   sender
	logger   hclog.Logger

	wake      chan struct{} // has a value when spans were added to an empty queue, or a batch is complete
	closing   chan struct{} // closed by Close
	done      chan struct{} // closed when the goroutine has returned
	cancel    context.CancelFunc
	closeOnce sync.Once

	mu      sync.Mutex
	queue   []queuedSpan
	dropped int  // spans that were dropped since the last message about it
	closed  bool // spans are ignored
}

type queuedSpan struct {
	trace *Trace
	span  tracespan.Span
}

// New returns an exporter for an enabled Config. The caller must close it. New does not connect to the
// collector.
func New(c Config, agent Agent, logger hclog.Logger) (*Exporter, error) {
	s, err := newSender(c, &traceSignal)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Exporter{
		config: c, resource: newResource(c, agent), scope: agent.Version, sender: s, logger: logger.Named("otlp"),
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}), cancel: cancel,
	}
	e.logger.Info("traces are exported", "endpoint", c.URL, "protocol", c.Protocol)
	go e.run(ctx)
	return e, nil
}

// add puts a span into the queue. It drops the span if the queue is full.
func (e *Exporter) add(s queuedSpan) {
	e.mu.Lock()
	switch {
	case e.closed:
		e.mu.Unlock()
		return
	case len(e.queue) >= maxQueue:
		e.dropped++
		e.mu.Unlock()
		return
	}
	e.queue = append(e.queue, s)
	n := len(e.queue)
	e.mu.Unlock()
	if n == 1 || n%maxBatch == 0 {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// Close sends the spans of the queue, and returns when they are sent, the collector does not accept them,
// or two seconds have passed. Later spans are ignored. Close may be called twice.
func (e *Exporter) Close() {
	e.closeOnce.Do(func() {
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		close(e.closing)
		timer := time.AfterFunc(closeTimeout, e.cancel)
		defer timer.Stop()
		<-e.done
		e.cancel()
		e.sender.close()
	})
}

// run sends batches until Close. ctx ends when the time of Close is over.
func (e *Exporter) run(ctx context.Context) {
	defer close(e.done)
	r := reporter{logger: e.logger}
	for e.awaitBatch() {
		batch := e.nextBatch()
		if !e.deliver(ctx, batch, &r) && e.isClosing() {
			break
		}
	}
	e.mu.Lock()
	lost := len(e.queue) + e.dropped
	e.queue, e.dropped = nil, 0
	e.mu.Unlock()
	r.lose(lost)
	r.flush()
}

// awaitBatch waits until a batch is complete or old enough. After Close it does not wait, and returns
// whether spans remain.
func (e *Exporter) awaitBatch() bool {
	var due <-chan time.Time
	for {
		n := e.queued()
		if e.isClosing() || n >= maxBatch {
			return n > 0
		}
		if n > 0 && due == nil {
			timer := time.NewTimer(batchDelay)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-e.wake:
		case <-due:
			return true
		case <-e.closing:
		}
	}
}

func (e *Exporter) queued() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue)
}

func (e *Exporter) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

func (e *Exporter) nextBatch() []queuedSpan {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.queue), maxBatch)
	batch := e.queue[:n:n]
	e.queue = e.queue[n:]
	if len(e.queue) == 0 {
		e.queue = nil // releases the memory of the batch when it is sent
	}
	return batch
}

// deliver sends a batch, again while the collector is unavailable, and after Close only once. It returns
// whether the collector has accepted the batch.
func (e *Exporter) deliver(ctx context.Context, batch []queuedSpan, r *reporter) bool {
	message := e.encode(batch)
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		closing := e.isClosing()
		rejected, err := e.sender.send(ctx, message)
		r.lose(e.takeDropped())
		if err == nil {
			r.lose(min(rejected, len(batch)))
			r.succeed()
			return true
		}
		r.fail(err)
		if !err.retry || closing || ctx.Err() != nil {
			r.lose(len(batch))
			r.flush()
			return false
		}
		select {
		case <-time.After(max(delay, min(err.delay, maxRetryDelay))):
		case <-e.closing:
		}
	}
}

func (e *Exporter) takeDropped() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.dropped
	e.dropped = 0
	return n
}

func (e *Exporter) encode(batch []queuedSpan) *tracepb.TracesData {
	spans := make([]*tracepb.Span, len(batch))
	for i := range batch {
		spans[i] = batch[i].trace.encode(&batch[i].span)
	}
	return newTracesData(e.resource, e.scope, spans)
}

// reporter logs changes of the collector's state and the number of lost spans. It belongs to the
// exporter's goroutine.
type reporter struct {
	logger  hclog.Logger
	failing bool
	lost    int       // since the last message
	lastLog time.Time // of lost spans
}

func (r *reporter) succeed() {
	if r.failing {
		r.failing = false
		r.logger.Info("traces are exported again", "lost_spans", r.lost)
		r.lost = 0
	}
	r.flushAfter(dropLogInterval)
}

func (r *reporter) fail(err *sendError) {
	if !r.failing {
		r.failing = true
		r.logger.Warn("traces are not exported", "error", err, "retry", err.retry)
	}
	r.flushAfter(dropLogInterval)
}

func (r *reporter) lose(spans int) {
	r.lost += spans
	metrics.LostSpans.Add(spans)
}

func (r *reporter) flushAfter(interval time.Duration) {
	if time.Since(r.lastLog) >= interval {
		r.flush()
	}
}

func (r *reporter) flush() {
	if r.lost == 0 {
		return
	}
	r.logger.Warn("spans were lost: the collector has not accepted them", "lost_spans", r.lost)
	r.lost, r.lastLog = 0, time.Now()
}
