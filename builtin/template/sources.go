package template

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// fetchFunc answers a query, and blocks until the index of the answer is higher than afterIndex, unless afterIndex is 0.
type fetchFunc func(ctx context.Context, afterIndex uint64) (answer evaluate.Datum, index uint64, err error)

// sourceWatcher has the answers to the queries of a task's templates, and keeps them up to date.
type sourceWatcher struct {
	newFetchFunc func(evaluate.Query) fetchFunc
	retry        retryConfig
	changeNotice chan struct{} // receives an element after an answer has changed
	pollers      sync.WaitGroup

	mu       sync.Mutex
	sources  map[evaluate.Query]*source
	dataSize int // of all answers, in bytes
}

// Limits of what the templates of a task read.
const (
	maxHostQueries = 1000     // variables and services: the agent accepts no more calls that wait for a change
	maxFiles       = 1000     // each is polled
	maxDataSize    = 64 << 20 // bytes
)

// source is the current answer to a query.
type source struct {
	fetch       fetchFunc
	answer      evaluate.Datum
	changeCount int // number of changes of the answer since the first one
	index       uint64
	fetchErr    error              // error of the last fetch; nil after a success
	stopPolling context.CancelFunc // nil while no goroutine polls the source
}

func newSourceWatcher(newFetchFunc func(evaluate.Query) fetchFunc, retry retryConfig) *sourceWatcher {
	return &sourceWatcher{newFetchFunc: newFetchFunc, retry: retry.withDefaults(), changeNotice: make(chan struct{}, 1), sources: map[evaluate.Query]*source{}}
}

// fetchAll fetches the answers to queries that have none. It blocks until all are there. A query that cannot be answered, as that of a
// variable of another region, is repeated while it is polled. An attribute of the node that cannot be read is an error: no template
// waits for it.
func (w *sourceWatcher) fetchAll(ctx context.Context, queries []evaluate.Query) error {
	for _, q := range queries {
		w.mu.Lock()
		hasAnswer := w.sources[q] != nil
		w.mu.Unlock()
		if hasAnswer {
			continue
		}
		fetch := w.newFetchFunc(q)
		answer, index, err := fetch(ctx, 0)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if isPermanent(err) || err != nil && q.Kind == evaluate.NodeAttribute {
			return err
		}
		if err != nil {
			answer = evaluate.Datum{Unavailable: true}
		}
		answer.Query = q
		if err := w.addSource(&source{fetch: fetch, answer: answer, index: index, fetchErr: err}); err != nil {
			return err
		}
	}
	return nil
}

var errTooManyQueries = newRenderError(fmt.Sprintf("the templates of a task read at most %d files, and %d variables, services and attributes", maxFiles, maxHostQueries))

// checkQueryCount returns an error if there are more queries than the templates of a task may have.
func checkQueryCount(used map[evaluate.Query]bool) error {
	files := 0
	for q := range used {
		if q.Kind == evaluate.File {
			files++
		}
	}
	if files > maxFiles || len(used)-files > maxHostQueries {
		return errTooManyQueries
	}
	return nil
}

// addSource adds a source, or returns an error at the limits.
func (w *sourceWatcher) addSource(s *source) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// pollOnly has not removed the sources that the new evaluation no longer uses.
	if len(w.sources) >= 2*(maxHostQueries+maxFiles) {
		return errTooManyQueries
	}
	if err := w.replaceAnswerSizeLocked(0, s.answer.Size()); err != nil {
		return newRenderError(err.Error())
	}
	w.sources[s.answer.Query] = s
	return nil
}

// replaceAnswerSizeLocked changes dataSize, or returns an error if there were too many data.
func (w *sourceWatcher) replaceAnswerSizeLocked(former, size int) error {
	if size > former && w.dataSize+size-former > maxDataSize {
		return fmt.Errorf("the templates of a task read at most %d MiB of data", maxDataSize>>20)
	}
	w.dataSize += size - former
	return nil
}

// answers returns the answers to queries, and their change counts. Queries without an answer are left out.
func (w *sourceWatcher) answers(queries []evaluate.Query) (list []evaluate.Datum, changeCounts map[evaluate.Query]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changeCounts = make(map[evaluate.Query]int, len(queries))
	for _, q := range queries {
		if s := w.sources[q]; s != nil {
			list = append(list, s.answer)
			changeCounts[q] = s.changeCount
		}
	}
	return list, changeCounts
}

// areUnchanged reports whether each query in changeCounts still has the change count that the map contains for it.
func (w *sourceWatcher) areUnchanged(changeCounts map[evaluate.Query]int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for q, changeCount := range changeCounts {
		if s := w.sources[q]; s == nil || s.changeCount != changeCount {
			return false
		}
	}
	return true
}

// fetchErrors returns the errors of the last fetches, sorted.
func (w *sourceWatcher) fetchErrors() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for q, s := range w.sources {
		if s.fetchErr != nil {
			list = append(list, fmt.Sprintf("%s: %v", q.Name, s.fetchErr))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// pollOnly starts polling the used queries, and removes all others.
func (w *sourceWatcher) pollOnly(ctx context.Context, used map[evaluate.Query]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for q, s := range w.sources {
		switch {
		case used[q] && s.stopPolling == nil:
			var pollCtx context.Context
			pollCtx, s.stopPolling = context.WithCancel(ctx)
			w.pollers.Go(func() { w.poll(pollCtx, s) })
		case !used[q]:
			if s.stopPolling != nil {
				s.stopPolling()
			}
			delete(w.sources, q)
			w.dataSize -= s.answer.Size()
		}
	}
}

// poll fetches the answer of a source whenever its index changes. After an error the source keeps its answer, so that the task
// can continue.
func (w *sourceWatcher) poll(ctx context.Context, s *source) {
	delay := w.retry.Backoff
	w.mu.Lock()
	index, failed := s.index, s.fetchErr != nil
	w.mu.Unlock()
	for {
		if failed {
			if wait.Sleep(ctx, delay) != nil {
				return
			}
			delay = min(2*delay, w.retry.MaxBackoff)
		}
		after := max(index, 1)
		if failed && index == 0 {
			after = 0 // there is no answer yet whose change the fetch could wait for
		}
		answer, newIndex, err := s.fetch(ctx, after)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		if w.sources[s.answer.Query] != s {
			w.mu.Unlock()
			return
		}
		answer.Query = s.answer.Query
		if err == nil {
			err = w.replaceAnswerSizeLocked(s.answer.Size(), answer.Size())
		}
		failed, s.fetchErr = err != nil, err
		if failed {
			w.mu.Unlock()
			continue
		}
		changed := !reflect.DeepEqual(answer, s.answer)
		delay, index, s.index = w.retry.Backoff, newIndex, newIndex
		if changed {
			s.answer, s.changeCount = answer, s.changeCount+1
		}
		w.mu.Unlock()
		if changed {
			w.triggerRender()
		}
	}
}

// triggerRender triggers a rendering of the task's templates.
func (w *sourceWatcher) triggerRender() {
	wait.Notify(w.changeNotice)
}

// newFetchFunc returns the function that answers a query of the task's templates.
func (t *taskRenderer) newFetchFunc(q evaluate.Query) fetchFunc {
	if q.Region != "" && q.Region != t.region {
		return func(context.Context, uint64) (evaluate.Datum, uint64, error) {
			return evaluate.Datum{}, 0, fmt.Errorf("no path to region %q: this node has the region %q", q.Region, t.region)
		}
	}
	switch q.Kind {
	case evaluate.File:
		return t.dirs.newFileFetchFunc(q.Name)
	case evaluate.Variable:
		return t.hostClient.newVariableFetchFunc(t.foreignNamespace(q.Namespace), q.Name)
	case evaluate.VariableList:
		return t.hostClient.newVariableListFetchFunc(t.foreignNamespace(q.Namespace), q.Name)
	case evaluate.Service:
		return t.hostClient.newServiceFetchFunc(q.Name, q.Choose)
	case evaluate.ServiceList:
		return t.hostClient.newServiceListFetchFunc(false)
	case evaluate.ConsulService:
		return t.hostClient.newConsulServiceFetchFunc(q.Name)
	case evaluate.ConsulServiceList:
		return t.hostClient.newServiceListFetchFunc(true)
	case evaluate.NodeAttribute:
		return t.fetchNodeAttribute(q.Name)
	}
	return func(context.Context, uint64) (evaluate.Datum, uint64, error) {
		return evaluate.Datum{}, 0, permanentErrorf("the evaluator has sent a query of the unknown kind %d", q.Kind)
	}
}

// foreignNamespace returns "" for the namespace of the job, which hosts of earlier versions assume.
func (t *taskRenderer) foreignNamespace(namespace string) string {
	if namespace == t.request.Namespace {
		return ""
	}
	return namespace
}

// fetchNodeAttribute returns the fetchFunc of an attribute of the node, which does not change while the task runs.
func (t *taskRenderer) fetchNodeAttribute(name string) fetchFunc {
	return func(ctx context.Context, afterIndex uint64) (evaluate.Datum, uint64, error) {
		if afterIndex > 0 {
			<-ctx.Done()
			return evaluate.Datum{}, 0, ctx.Err()
		}
		reference := "${" + name + "}"
		value, err := t.interpolate(ctx, reference)
		return evaluate.Datum{Value: evaluate.Value{Exists: value != reference, Text: value}}, 1, err
	}
}

// newFetchFunc returns a fetchFunc that reads a value through the host.
func (h *hostClient) newFetchFunc(read func(ctx context.Context, s hook.Scope, after uint64) (evaluate.Value, uint64, error)) fetchFunc {
	return func(ctx context.Context, after uint64) (answer evaluate.Datum, index uint64, err error) {
		err = h.callUntilAnswered(ctx, func(s hook.Scope) (err error) {
			answer.Value, index, err = read(ctx, s, after)
			return err
		})
		return answer, index, err
	}
}

func (h *hostClient) newVariableFetchFunc(namespace, path string) fetchFunc {
	return h.newFetchFunc(func(ctx context.Context, s hook.Scope, after uint64) (evaluate.Value, uint64, error) {
		found, err := h.host.Variable(ctx, s, hook.VariableRequest{Path: path, Namespace: namespace, AfterIndex: after})
		if found.Items == nil {
			return evaluate.Value{}, found.Index, err
		}
		found.Metadata.Path = path // an agent of an earlier version sends no metadata
		m := newAPIMetadata(found.Metadata)
		return evaluate.Value{Exists: true, Variable: &api.Variable{
			Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
			CreateTime: m.CreateTime, ModifyTime: m.ModifyTime, Items: found.Items,
		}}, found.Index, err
	})
}

func newAPIMetadata(m hook.VariableMetadata) *api.VariableMetadata {
	return &api.VariableMetadata{
		Namespace: m.Namespace, Path: m.Path, CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex,
		CreateTime: m.CreateTime.UnixNano(), ModifyTime: m.ModifyTime.UnixNano(),
	}
}

func (h *hostClient) newVariableListFetchFunc(namespace, prefix string) fetchFunc {
	return h.newFetchFunc(func(ctx context.Context, s hook.Scope, after uint64) (evaluate.Value, uint64, error) {
		found, err := h.host.Variables(ctx, s, hook.VariablesRequest{Prefix: prefix, Namespace: namespace, AfterIndex: after})
		if found.Variables == nil { // from an agent of an earlier version
			for _, path := range found.Paths {
				found.Variables = append(found.Variables, hook.VariableMetadata{Path: path})
			}
		}
		list := evaluate.Value{Exists: true}
		for _, m := range found.Variables {
			list.Variables = append(list.Variables, newAPIMetadata(m))
		}
		return list, found.Index, err
	})
}

// newServiceFetchFunc returns the fetchFunc of the instances of a service, or of those that choose selects.
func (h *hostClient) newServiceFetchFunc(name, choose string) fetchFunc {
	return h.newFetchFunc(func(ctx context.Context, s hook.Scope, after uint64) (evaluate.Value, uint64, error) {
		found, err := h.host.Services(ctx, s, hook.ServicesRequest{Name: name, AfterIndex: after})
		if err != nil {
			return evaluate.Value{}, 0, err
		}
		chosen, err := chooseServices(found.Services, choose)
		list := evaluate.Value{Exists: true}
		for _, i := range chosen {
			list.Services = append(list.Services, new(newServiceRegistration(i)))
		}
		return list, found.Index, err
	})
}

// newConsulServiceFetchFunc returns the fetchFunc of the instances of a service in the catalog that takes the place of Consul's. Without
// services of Consul the data do not exist.
func (h *hostClient) newConsulServiceFetchFunc(name string) fetchFunc {
	return h.newFetchFunc(func(ctx context.Context, s hook.Scope, after uint64) (evaluate.Value, uint64, error) {
		found, err := h.host.Services(ctx, s, hook.ServicesRequest{Name: name, InPlaceOfConsul: true, AfterIndex: after})
		list := evaluate.Value{Exists: !found.NoConsul}
		for _, i := range found.Services {
			list.ConsulServices = append(list.ConsulServices, evaluate.ConsulInstance{
				ServiceRegistration: newServiceRegistration(i), Status: cmp.Or(i.Status, hook.ServicePassing),
			})
		}
		return list, found.Index, err
	})
}

func newServiceRegistration(s hook.Service) api.ServiceRegistration {
	return api.ServiceRegistration{
		ID: s.ID, ServiceName: s.Name, NodeID: s.NodeID, Datacenter: s.Datacenter, JobID: s.JobID, AllocID: s.AllocID,
		Tags: s.Tags, Address: s.Address, Port: s.Port,
	}
}

// newServiceListFetchFunc returns the fetchFunc of all services, or of those in the catalog that takes the place of Consul's.
func (h *hostClient) newServiceListFetchFunc(inPlaceOfConsul bool) fetchFunc {
	return h.newFetchFunc(func(ctx context.Context, s hook.Scope, after uint64) (evaluate.Value, uint64, error) {
		found, err := h.host.Services(ctx, s, hook.ServicesRequest{InPlaceOfConsul: inPlaceOfConsul, AfterIndex: after})
		return evaluate.Value{Exists: !found.NoConsul, ServiceNames: newServiceStubs(found.Services)}, found.Index, err
	})
}

// newServiceStubs returns each service once, with the tags of all its instances. The instances are sorted by the name of their service.
func newServiceStubs(instances []hook.Service) (list []*api.ServiceRegistrationStub) {
	for _, i := range instances {
		if n := len(list); n == 0 || list[n-1].ServiceName != i.Name {
			list = append(list, &api.ServiceRegistrationStub{ServiceName: i.Name})
		}
		last := list[len(list)-1]
		last.Tags = append(last.Tags, i.Tags...)
	}
	for _, s := range list {
		slices.Sort(s.Tags)
		s.Tags = slices.Compact(s.Tags)
	}
	return list
}
