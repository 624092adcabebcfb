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
	// maxQueue is the maximum number of spans waiting for the collector. A span has less than 4 kB, usually 0.5 kB.
	maxQueue = 4096
	// maxBatch is the maximum number of spans in a request. By default the collector accepts requests up to 4 MB.
	maxBatch = 512

	requestTimeout = 10 * time.Second
	maxRetryDelay  = 30 * time.Second

	// dropLogInterval is the minimum time between two messages about dropped spans.
	dropLogInterval = time.Minute
)

// Variables, so that tests can make the times shorter.
var (
	// batchDelay is how long an incomplete batch's first span waits for further spans. A killed agent loses the waiting spans.
	batchDelay = time.Second
	// closeTimeout is how long TraceExporter.Close waits for the collector.
	closeTimeout = 2 * time.Second

	minRetryDelay = time.Second
)

// AgentFacts describes the agent that exports spans and metrics.
type AgentFacts struct {
	Version                                        string
	NodeID, NodeName, Datacenter, Region, HostName string
}

// TraceExporter sends spans to a collector. Its methods may be called concurrently.
type TraceExporter struct {
	config       Config
	resource     *resourcepb.Resource
	scopeVersion string // instrumentation scope version
	sender       otlpSender
	logger       hclog.Logger

	batchAvailable chan struct{} // enqueueOrDrop sends a value when it has added a span to an empty queue, or has completed a batch
	closing        chan struct{} // closed by Close
	stopped        chan struct{} // closed when run has returned
	cancelSends    context.CancelFunc
	closeOnce      sync.Once

	mu               sync.Mutex
	spanQueue        []queuedSpan
	droppedSpanCount int  // spans dropped because of a full queue since the last takeDroppedSpanCount call
	isClosed         bool // Close was called, and enqueueOrDrop ignores spans
}

type queuedSpan struct {
	trace *AllocTrace
	span  tracespan.Span
}

// NewTraceExporter returns an exporter for an enabled Config. The caller must close it. NewTraceExporter does not
// connect to the collector.
func NewTraceExporter(c Config, agent AgentFacts, logger hclog.Logger) (*TraceExporter, error) {
	s, err := newSender(c, &traceSignal)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &TraceExporter{
		config: c, resource: newResource(c, agent), scopeVersion: agent.Version, sender: s, logger: logger.Named("otlp"),
		batchAvailable: make(chan struct{}, 1), closing: make(chan struct{}), stopped: make(chan struct{}), cancelSends: cancel,
	}
	e.logger.Info("traces are exported", "endpoint", c.CollectorURL, "protocol", c.Protocol)
	go e.run(ctx)
	return e, nil
}

// enqueueOrDrop puts a span into the queue. It drops the span if the queue is full.
func (e *TraceExporter) enqueueOrDrop(s queuedSpan) {
	e.mu.Lock()
	switch {
	case e.isClosed:
		e.mu.Unlock()
		return
	case len(e.spanQueue) >= maxQueue:
		e.droppedSpanCount++
		e.mu.Unlock()
		return
	}
	e.spanQueue = append(e.spanQueue, s)
	n := len(e.spanQueue)
	e.mu.Unlock()
	if n == 1 || n%maxBatch == 0 {
		select {
		case e.batchAvailable <- struct{}{}:
		default:
		}
	}
}

// Close sends the spans in the queue. It returns when the spans are sent, when the collector has not accepted a batch, or after
// two seconds. Later spans are ignored. Close may be called twice.
func (e *TraceExporter) Close() {
	e.closeOnce.Do(func() {
		e.mu.Lock()
		e.isClosed = true
		e.mu.Unlock()
		close(e.closing)
		timer := time.AfterFunc(closeTimeout, e.cancelSends)
		defer timer.Stop()
		<-e.stopped
		e.cancelSends()
		e.sender.close()
	})
}

// run sends batches until Close is called, and then the remaining spans. ctx ends closeTimeout after Close is called.
func (e *TraceExporter) run(ctx context.Context) {
	defer close(e.stopped)
	r := exportFailureLog{logger: e.logger}
	for e.awaitBatch() {
		batch := e.takeBatch()
		if !e.sendWithRetry(ctx, batch, &r) && e.isClosing() {
			break
		}
	}
	e.mu.Lock()
	lost := len(e.spanQueue) + e.droppedSpanCount
	e.spanQueue, e.droppedSpanCount = nil, 0
	e.mu.Unlock()
	r.countLostSpans(lost)
	r.logLostSpans()
}

// awaitBatch waits until the queue has maxBatch spans, or its first span has waited for batchDelay. After Close is called it does
// not wait. It returns false if no spans remain after Close.
func (e *TraceExporter) awaitBatch() (hasSpans bool) {
	var due <-chan time.Time
	for {
		n := e.queueLen()
		if e.isClosing() || n >= maxBatch {
			return n > 0
		}
		if n > 0 && due == nil {
			timer := time.NewTimer(batchDelay)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-e.batchAvailable:
		case <-due:
			return true
		case <-e.closing:
		}
	}
}

func (e *TraceExporter) queueLen() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.spanQueue)
}

func (e *TraceExporter) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

func (e *TraceExporter) takeBatch() []queuedSpan {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.spanQueue), maxBatch)
	batch := e.spanQueue[:n:n]
	e.spanQueue = e.spanQueue[n:]
	if len(e.spanQueue) == 0 {
		e.spanQueue = nil // so that the memory is released when the batch is sent
	}
	return batch
}

// sendWithRetry sends a batch, and repeats this while the collector is unavailable, until Close is called. It reports
// whether the collector has accepted the batch.
func (e *TraceExporter) sendWithRetry(ctx context.Context, batch []queuedSpan, r *exportFailureLog) (accepted bool) {
	message := e.encodeSpans(batch)
	for delay := minRetryDelay; ; delay = min(2*delay, maxRetryDelay) {
		closing := e.isClosing()
		rejected, err := e.sender.send(ctx, message)
		r.countLostSpans(e.takeDroppedSpanCount())
		if err == nil {
			r.countLostSpans(min(rejected, len(batch)))
			r.logIfRecovered()
			return true
		}
		r.logFirstFailure(err)
		if !err.canRetry || closing || ctx.Err() != nil {
			r.countLostSpans(len(batch))
			r.logLostSpans()
			return false
		}
		select {
		case <-time.After(max(delay, min(err.retryDelay, maxRetryDelay))):
		case <-e.closing:
		}
	}
}

func (e *TraceExporter) takeDroppedSpanCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.droppedSpanCount
	e.droppedSpanCount = 0
	return n
}

func (e *TraceExporter) encodeSpans(batch []queuedSpan) *tracepb.TracesData {
	spans := make([]*tracepb.Span, len(batch))
	for i := range batch {
		spans[i] = batch[i].trace.encodeSpan(&batch[i].span)
	}
	return newTracesData(e.resource, e.scopeVersion, spans)
}

// exportFailureLog logs the collector's state changes and the number of lost spans. It is not for concurrent use.
type exportFailureLog struct {
	logger            hclog.Logger
	isFailing         bool
	lostSpanCount     int // spans lost since lostSpansLoggedAt
	lostSpansLoggedAt time.Time
}

func (e *exportFailureLog) logIfRecovered() {
	if e.isFailing {
		e.isFailing = false
		e.logger.Info("traces are exported again", "lost_spans", e.lostSpanCount)
		e.lostSpanCount = 0
	}
	e.logLostSpansIfDue(dropLogInterval)
}

func (e *exportFailureLog) logFirstFailure(err *sendError) {
	if !e.isFailing {
		e.isFailing = true
		e.logger.Warn("traces are not exported", "error", err, "retry", err.canRetry)
	}
	e.logLostSpansIfDue(dropLogInterval)
}

func (e *exportFailureLog) countLostSpans(spans int) {
	e.lostSpanCount += spans
	metrics.LostSpans.Add(spans)
}

func (e *exportFailureLog) logLostSpansIfDue(interval time.Duration) {
	if time.Since(e.lostSpansLoggedAt) >= interval {
		e.logLostSpans()
	}
}

func (e *exportFailureLog) logLostSpans() {
	if e.lostSpanCount == 0 {
		return
	}
	e.logger.Warn("spans were lost: the collector has not accepted them", "lost_spans", e.lostSpanCount)
	e.lostSpanCount, e.lostSpansLoggedAt = 0, time.Now()
}
