package evaluate

import (
	"fmt"

	"github.com/hashicorp/consul-template/template"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/templatetext"
)

// Request describes one execution of a template.
type Request struct {
	Text                  string
	LeftDelim, RightDelim string // empty means the default delimiter
	ErrMissingKey         bool   // a missing map key is an error
	DestPath              string // path of the rendered file, which names the certificates of pkiCert
	DeniedFunctions       []string
	Env                   map[string]string
	Namespace, JobID      string  // of the job
	Data                  []Datum // the data that are known
}

// Kind is a kind of data that templates read.
type Kind uint8

// The kinds of data. Each has the meaning of Query.Name, and the field of Value with the result.
const (
	File              Kind = iota + 1 // a path -> Value.Text
	Variable                          // a path -> Value.Variable
	VariableList                      // a prefix -> Value.Variables
	Service                           // the name of a service -> Value.Services
	ServiceList                       // no name -> Value.ServiceNames
	NodeAttribute                     // a name such as attr.cpu.arch -> Value.Text
	ConsulService                     // the name of a service -> Value.ConsulServices
	ConsulServiceList                 // no name -> Value.ServiceNames
)

// Query identifies data that a template reads. Queries can be compared.
type Query struct {
	Kind      Kind
	Name      string
	Namespace string // of a variable
	Region    string // empty means the region of the job
	Choose    string // of a service: "count|key" selects that number of instances; empty means all instances
}

// Value is the value of a query. Of the fields after Exists only the field of the query's kind is set.
type Value struct {
	Exists       bool // false: there are no such data
	Text         string
	Variable     *api.Variable
	Variables    []*api.VariableMetadata
	Services     []*api.ServiceRegistration
	ServiceNames []*api.ServiceRegistrationStub

	ConsulServices []ConsulInstance
}

// ConsulInstance is an instance of a service in a catalog that takes the place of Consul's.
type ConsulInstance struct {
	api.ServiceRegistration
	Status string // of its checks: passing or critical
}

// Datum answers a query: with a value, or with the text of the error that the template function returns.
type Datum struct {
	Query       Query
	Value       Value
	Err         string
	Unavailable bool // it is not known whether the data exist: a template that needs them waits
}

// Size returns about how many bytes the datum has.
func (d *Datum) Size() int {
	v := &d.Value
	size := len(d.Query.Name) + len(d.Query.Choose) + len(d.Err) + len(v.Text) +
		500*(len(v.Variables)+len(v.Services)+len(v.ServiceNames)+len(v.ConsulServices))
	addTags := func(tags []string) {
		for _, tag := range tags {
			size += len(tag) + 16
		}
	}
	for _, s := range v.Services {
		addTags(s.Tags)
	}
	for _, s := range v.ServiceNames {
		addTags(s.Tags)
	}
	for _, s := range v.ConsulServices {
		addTags(s.Tags)
	}
	if v.Variable != nil {
		for key, item := range v.Variable.Items {
			size += len(key) + len(item)
		}
	}
	return size
}

// Result is the result of an execution. Text and Err are valid only if Unknown is empty, and Text only if Missing is empty too.
type Result struct {
	Text []byte
	Err  string // text of the error with which the template fails; empty after success

	// Used are the queries of the template, in the order of their first use. Unknown are those that Request.Data does not answer:
	// the caller adds their answers and evaluates again.
	Used, Unknown []Query

	// UsedEnv are the names of the existing environment variables that the template has read.
	UsedEnv []string

	// Missing are the names of the data that the template needs and that do not exist, as in Nomad's event.
	Missing []string
}

// alwaysDenied are functions that an operator cannot allow: they start programs and write files outside of the task.
var alwaysDenied = []string{"plugin", "writeToFile"}

// MaxOutputSize limits the output of a template, in bytes.
const MaxOutputSize = 16 << 20

// Limits of what else a result has, because the hook's process keeps it.
const (
	maxErrorSize   = 16 << 10 // of Result.Err, in bytes
	maxNames       = 10_000   // of Used, and of Missing
	maxNameSize    = 4 << 10  // of a name in Used or Missing, in bytes
	maxNamesLength = 4 << 20  // of all names in Used, and of those in Missing, in bytes
)

// Evaluate executes a template with consul-template's functions. Besides the request it uses only the clock, random numbers and, for
// sockaddr, the network interfaces and routes. It blocks until the template ends, possibly forever: the caller limits the time and
// memory of the process. It may be called concurrently.
func Evaluate(r *Request) *Result {
	e := newEvaluation(r)
	text, err := e.execute()
	result := &Result{Text: text, Used: e.used, Unknown: e.unknown, UsedEnv: e.usedEnv, Missing: e.missing}
	if err != nil {
		result.Err = err.Error()
		if len(result.Err) > maxErrorSize {
			result.Err = result.Err[:maxErrorSize] + "…"
		}
	}
	return result
}

func (e *evaluation) execute() ([]byte, error) {
	r := e.request
	if r.Text == "" {
		return nil, nil // NewTemplate rejects an empty text
	}
	if err := checkBlockCount(r.Text, r.LeftDelim); err != nil {
		return nil, err
	}
	t, err := template.NewTemplate(&template.NewTemplateInput{
		Contents: r.Text, Destination: r.DestPath, LeftDelim: r.LeftDelim, RightDelim: r.RightDelim, ErrMissingKey: r.ErrMissingKey,
		ExtFuncMap: e.functions(), FunctionDenylist: append(alwaysDenied[:len(alwaysDenied):len(alwaysDenied)], r.DeniedFunctions...),
	})
	if err != nil {
		return nil, err
	}
	result, err := t.Execute(&template.ExecuteInput{Brain: template.NewBrain()})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Source(), err)
	}
	if len(result.Output) > MaxOutputSize {
		return nil, fmt.Errorf("the output has more than %d MiB", MaxOutputSize>>20)
	}
	for _, d := range result.Missing.List() {
		e.addMissing(d)
	}
	return result.Output, nil
}

// checkBlockCount returns an error for a text whose blocks could overflow the stack of the parser.
func checkBlockCount(text, leftDelim string) error {
	if templatetext.HasTooManyBlocks(text, leftDelim) {
		return fmt.Errorf("a template has at most %d blocks", templatetext.MaxBlocks)
	}
	return nil
}
