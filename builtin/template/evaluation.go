package template

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// evaluationRequest is the request to evaluate one template, with the values that need no call of
// evaluationData. The hook's process sends it to the evaluator process.
type evaluationRequest struct {
	Name, Text            string
	LeftDelim, RightDelim string
	ErrMissingKey         bool
	DeniedFunctions       []string
	Env                   map[string]string
	Namespace, Region     string
	DestPathForSeed       string    // part of the seed, so that each destination gets other random numbers
	Now                   time.Time // time that the template functions return as the current time
}

// evaluationData provides the data that a template reads. Its implementation in the hook's process
// rejects files outside of the task's directories.
type evaluationData interface {
	// interpolate resolves the references in a text.
	interpolate(ctx context.Context, text string) (string, error)

	// readSource returns the value of a data source, and records that the output depends on the
	// source.
	readSource(ctx context.Context, q sourceQuery) (sourceValue, error)

	// randomSeed returns the seed of the task's random numbers.
	randomSeed(ctx context.Context) ([]byte, error)
}

// sourceQuery identifies a data source by its kind and by its name inside of the job's namespace
// and region.
type sourceQuery struct{ Kind, Name string }

// Kinds of data sources.
const (
	fileKind          = "file"
	variableKind      = "nomad.var.block"
	variableQueryKind = "nomad.var.query"
	variableListKind  = "nomad.var.list"
	serviceKind       = "nomad.service"
	servicesKind      = "nomad.services"
)

// toDataSource returns the data source with this kind and name in a namespace and a region.
func (q sourceQuery) toDataSource(namespace, region string) dataSource {
	switch q.Kind {
	case fileKind:
		return dataSource{q.Kind, q.Name}
	case serviceKind:
		return dataSource{q.Kind, q.Name + "@" + region}
	case servicesKind:
		return dataSource{q.Kind, region}
	}
	return dataSource{q.Kind, q.Name + "@" + namespace + "." + region}
}

// sourceValue is the value of a data source. Of the fields after Exists, only the field for the
// kind of the source is set.
type sourceValue struct {
	Exists        bool
	FileText      string            // content of a file
	VariableItems map[string]string // items of a variable
	VariablePaths []string          // paths of a list of variables
	Services      []hook.Service
}

// evaluationResult is the result of one evaluation of a template. Text must not be used if
// MissingSources is not empty.
type evaluationResult struct {
	Text           string
	UsesTime       bool // true if a template function has returned the current time
	MissingSources []sourceQuery
}

// evaluator evaluates templates.
type evaluator interface {
	evaluate(ctx context.Context, e *evaluationRequest, data evaluationData) (*evaluationResult, error)
}

// localEvaluator evaluates templates in this process, on threads that cannot access files.
type localEvaluator struct{}

func (localEvaluator) evaluate(ctx context.Context, e *evaluationRequest, data evaluationData) (*evaluationResult, error) {
	t, err := compileTemplate(e)
	if err != nil {
		return nil, err
	}
	p := &renderPass{ctx: ctx, evaluationRequest: e, data: data, missingSources: map[sourceQuery]bool{}}
	text, err := t.execute(p)
	if err != nil {
		return nil, err
	}
	r := &evaluationResult{Text: text, UsesTime: p.usesTime}
	for q := range p.missingSources {
		r.MissingSources = append(r.MissingSources, q)
	}
	return r, nil
}

// taskEvaluationData provides the data of a task for one evaluation, and records the sources that the
// template has read.
type taskEvaluationData struct {
	task *taskRenderer

	mu                      sync.Mutex
	changeCountsAtFirstRead map[dataSource]int // source -> its change count at the first read
}

func (d *taskEvaluationData) interpolate(ctx context.Context, text string) (string, error) {
	return d.task.interpolate(ctx, text)
}

func (d *taskEvaluationData) randomSeed(context.Context) ([]byte, error) {
	return d.task.readOrCreateSeed()
}

func (d *taskEvaluationData) readSource(ctx context.Context, q sourceQuery) (sourceValue, error) {
	fetch, err := d.fetchFuncFor(q)
	if err != nil {
		return sourceValue{}, err
	}
	s := q.toDataSource(d.task.namespace, d.task.region)
	value, changeCount, err := d.task.watcher.getOrFetch(ctx, s, fetch)
	if err != nil {
		return sourceValue{}, err
	}
	d.mu.Lock()
	if _, known := d.changeCountsAtFirstRead[s]; !known {
		d.changeCountsAtFirstRead[s] = changeCount
	}
	d.mu.Unlock()
	v := sourceValue{Exists: value != nil}
	switch value := value.(type) {
	case string:
		v.FileText = value
	case map[string]string:
		v.VariableItems = value
	case []string:
		v.VariablePaths = value
	case []hook.Service:
		v.Services = value
	}
	return v, nil
}

// fetchFuncFor returns the function that fetches the value of a source.
func (d *taskEvaluationData) fetchFuncFor(q sourceQuery) (blockingFetchFunc, error) {
	switch q.Kind {
	case fileKind:
		at, ok := d.task.dirs.resolveReadablePath(q.Name)
		if !ok || at.rootDir == d.task.dirs.sharedAllocDir {
			return nil, permanentErrorf("'%s' is outside of sandbox", q.Name)
		}
		return at.fetchFileAfterChange, nil
	case variableKind, variableQueryKind:
		return d.task.hostClient.variableFetchFunc(q.Name), nil
	case variableListKind:
		return d.task.hostClient.variableListFetchFunc(q.Name), nil
	case serviceKind, servicesKind:
		return d.task.hostClient.serviceFetchFunc(q.Name), nil
	}
	return nil, permanentErrorf("there is no source of the kind %q", q.Kind)
}
