package template

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// evaluation is one evaluation of a template, with the values that need no call of evaluationData. It crosses the wire to the
// evaluator process.
type evaluation struct {
	Name, Text            string
	LeftDelim, RightDelim string
	ErrMissingKey         bool
	DeniedFunctions       []string
	Env                   map[string]string
	Namespace, Region     string
	DestPath              string    // the random numbers of each destination differ
	Now                   time.Time // current time for the template
}

// evaluationData are the data that a template reads. The process of the hook checks each call: what a template names is inside
// of the task's directories and its namespace.
type evaluationData interface {
	// interpolate resolves the references in a text.
	interpolate(ctx context.Context, text string) (string, error)

	// read returns the value of a source, and records that the output depends on it.
	read(ctx context.Context, q sourceQuery) (sourceValue, error)

	// seed returns the seed of the task's random numbers.
	seed(ctx context.Context) ([]byte, error)
}

// sourceQuery identifies a source by its kind and by its name inside of the job's namespace and region.
type sourceQuery struct{ Kind, Name string }

// Kinds of sources.
const (
	fileKind          = "file"
	variableKind      = "nomad.var.block"
	variableQueryKind = "nomad.var.query"
	variableListKind  = "nomad.var.list"
	serviceKind       = "nomad.service"
	servicesKind      = "nomad.services"
)

// source returns the source in a namespace and a region.
func (q sourceQuery) source(namespace, region string) dataSource {
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

// sourceValue is the value of a source. The field of its kind is set.
type sourceValue struct {
	Exists   bool
	Text     string            // of a file
	Items    map[string]string // of a variable
	Paths    []string          // of a list of variables
	Services []hook.Service
}

// evaluationResult is the result of a template. Text is not valid while sources are missing.
type evaluationResult struct {
	Text           string
	UsesTime       bool // a function of the template has returned the time
	MissingSources []sourceQuery
}

// evaluator evaluates templates.
type evaluator interface {
	evaluate(ctx context.Context, e *evaluation, data evaluationData) (*evaluationResult, error)
}

// localEvaluator evaluates templates in this process, on threads that cannot access files.
type localEvaluator struct{}

func (localEvaluator) evaluate(ctx context.Context, e *evaluation, data evaluationData) (*evaluationResult, error) {
	t, err := compileTemplate(e)
	if err != nil {
		return nil, err
	}
	p := &renderPass{ctx: ctx, evaluation: e, data: data, missingSources: map[sourceQuery]bool{}}
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

// taskData are the data of a task, for one evaluation. It records the sources that the template has read.
type taskData struct {
	task *taskRenderer

	mu          sync.Mutex
	sourcesRead map[dataSource]int // with their change counts at the first read
}

func (d *taskData) interpolate(ctx context.Context, text string) (string, error) {
	return d.task.interpolate(ctx, text)
}

func (d *taskData) seed(context.Context) ([]byte, error) { return d.task.readOrCreateSeed() }

func (d *taskData) read(ctx context.Context, q sourceQuery) (sourceValue, error) {
	fetch, err := d.fetchFunc(q)
	if err != nil {
		return sourceValue{}, err
	}
	s := q.source(d.task.namespace, d.task.region)
	value, changeCount, err := d.task.watcher.get(ctx, s, fetch)
	if err != nil {
		return sourceValue{}, err
	}
	d.mu.Lock()
	if _, known := d.sourcesRead[s]; !known {
		d.sourcesRead[s] = changeCount
	}
	d.mu.Unlock()
	v := sourceValue{Exists: value != nil}
	switch value := value.(type) {
	case string:
		v.Text = value
	case map[string]string:
		v.Items = value
	case []string:
		v.Paths = value
	case []hook.Service:
		v.Services = value
	}
	return v, nil
}

// fetchFunc returns the function that reads a source.
func (d *taskData) fetchFunc(q sourceQuery) (fetchFunc, error) {
	switch q.Kind {
	case fileKind:
		at, ok := d.task.dirs.resolveReadablePath(q.Name)
		if !ok || at.root == d.task.dirs.sharedAllocDir {
			return nil, permanentErrorf("'%s' is outside of sandbox", q.Name)
		}
		return at.waitForChange, nil
	case variableKind, variableQueryKind:
		return d.task.hostClient.fetchVariable(q.Name), nil
	case variableListKind:
		return d.task.hostClient.fetchVariables(q.Name), nil
	case serviceKind, servicesKind:
		return d.task.hostClient.fetchServices(q.Name), nil
	}
	return nil, permanentErrorf("there is no source of the kind %q", q.Kind)
}
