package httpapi

import (
	"context"
	"math"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// usageHistory reads the usage of the node and of its tasks in the last hours. history.Recorder implements it.
type usageHistory interface {
	// Series returns the usage of each group of objects in the period; a group without a sample is missing.
	Series(ctx context.Context, p history.Period, keysByGroup map[string][]history.Key) (map[string]*history.Series, error)
}

// noHistory has no samples.
type noHistory struct{}

func (noHistory) Series(context.Context, history.Period, map[string][]history.Key) (map[string]*history.Series, error) {
	return nil, nil
}

// historyHandler serves the usage of the last hours, an extension of Nomad's API. The routes have no blocking queries: a client
// adds current values from the routes for statistics.
type historyHandler struct {
	agent   *localAgent
	store   *store.Store
	history usageHistory
}

// A chart has no more than maxHistorySteps values, and the small chart of a job in a list no more than maxListedHistorySteps.
const (
	maxHistorySteps       = 362
	maxListedHistorySteps = 31
)

// period returns the period that ends now and has the duration of the parameter "period".
func (r *request) period(defaultDuration time.Duration, maxSteps int) (history.Period, error) {
	duration := defaultDuration
	if text := r.query.Get("period"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil || duration <= 0 {
			return history.Period{}, badRequestError("Query parameter \"period\" must be a positive duration, such as 1h")
		}
	}
	return history.NewPeriod(time.Now(), min(duration, history.Retention), maxSteps), nil
}

// seriesOrEmpty returns a series without a value in place of nil.
func seriesOrEmpty(s *history.Series, p history.Period) *history.Series {
	if s != nil {
		return s
	}
	return &history.Series{Interval: p.Step, Times: []int64{}, CPU: []*float64{}, Memory: []*uint64{}, Disk: []*uint64{}, Restarts: []uint32{}}
}

func (h *historyHandler) readOne(r *request, keys ...history.Key) (*history.Series, error) {
	p, err := r.period(history.Retention, maxHistorySteps)
	if err != nil {
		return nil, err
	}
	all, err := h.history.Series(r.Context(), p, map[string][]history.Key{"": keys})
	if err != nil {
		return nil, err
	}
	return seriesOrEmpty(all[""], p), nil
}

// node replies with the usage of the machine. Its disk usage is that of the file system of the allocations.
func (h *historyHandler) node(r *request) (any, error) {
	if err := h.agent.checkNodeAndServerParams(r); err != nil {
		return nil, err
	}
	return h.readOne(r, history.NodeKey)
}

// job replies with the usage of all tasks of a job.
func (h *historyHandler) job(r *request) (any, error) {
	s, err := r.snapshot(h.store, nil)
	if err != nil {
		return nil, err
	}
	if s.Job(nil, r.namespace, r.pathID) == nil {
		return nil, notFoundError("job not found")
	}
	return h.readOne(r, history.JobKey(r.namespace, r.pathID))
}

// allocHistory is the usage of an allocation in the last hours.
type allocHistory struct {
	Allocation *history.Series // sum of the tasks; its disk usage includes the files that the tasks share
	Tasks      map[string]*history.Series
}

func (h *historyHandler) allocation(r *request) (any, error) {
	alloc, err := r.findAllocation(h.store)
	if err != nil {
		return nil, err
	}
	p, err := r.period(history.Retention, maxHistorySteps)
	if err != nil {
		return nil, err
	}
	const wholeAlloc = "" // no task has this name
	keysByGroup := map[string][]history.Key{wholeAlloc: {history.TaskKey(alloc.ID, "")}}
	for task := range alloc.TaskStates {
		key := history.TaskKey(alloc.ID, task)
		keysByGroup[task] = []history.Key{key}
		keysByGroup[wholeAlloc] = append(keysByGroup[wholeAlloc], key)
	}
	all, err := h.history.Series(r.Context(), p, keysByGroup)
	if err != nil {
		return nil, err
	}
	reply := allocHistory{Allocation: seriesOrEmpty(all[wholeAlloc], p), Tasks: map[string]*history.Series{}}
	delete(all, wholeAlloc)
	for task, series := range all {
		reply.Tasks[task] = series
	}
	return reply, nil
}

// jobHistories is the usage of jobs, for small charts. All lists have one value for each of Times.
type jobHistories struct {
	Interval time.Duration // nanoseconds from one of Times to the next
	Times    []int64       // milliseconds since 1970
	Jobs     []jobHistory  // jobs whose tasks ran in the period
}

type jobHistory struct {
	ID, Namespace string
	CPU           []*float64 // MHz; null if unknown
	Memory        []*uint64  // bytes; null if unknown
}

func (h *historyHandler) jobs(r *request) (any, error) {
	p, err := r.period(time.Hour, maxListedHistorySteps)
	if err != nil {
		return nil, err
	}
	s, err := r.snapshot(h.store, nil)
	if err != nil {
		return nil, err
	}
	jobs := s.Jobs(nil, r.namespace, r.query.Get("prefix"))
	keysByGroup := make(map[string][]history.Key, len(jobs))
	group := func(j *api.Job) string { return pointer.Value(j.Namespace) + "/" + pointer.Value(j.ID) }
	for _, j := range jobs {
		keysByGroup[group(j)] = []history.Key{history.JobKey(pointer.Value(j.Namespace), pointer.Value(j.ID))}
	}
	all, err := h.history.Series(r.Context(), p, keysByGroup)
	if err != nil {
		return nil, err
	}
	reply := jobHistories{Interval: p.Step, Times: p.Steps(), Jobs: []jobHistory{}}
	for _, j := range jobs {
		series := all[group(j)]
		if series == nil {
			continue
		}
		one := jobHistory{ID: pointer.Value(j.ID), Namespace: pointer.Value(j.Namespace), CPU: make([]*float64, len(reply.Times)), Memory: make([]*uint64, len(reply.Times))}
		for i, t := range series.Times {
			at := int((t - reply.Times[0]) / p.Step.Milliseconds())
			if at < 0 || at >= len(reply.Times) {
				continue
			}
			if cpu := series.CPU[i]; cpu != nil {
				one.CPU[at] = new(math.Round(*cpu*10) / 10)
			}
			one.Memory[at] = series.Memory[i]
		}
		reply.Jobs = append(reply.Jobs, one)
	}
	return reply, nil
}
