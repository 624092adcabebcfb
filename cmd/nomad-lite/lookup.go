package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// findJob returns the id and the namespace of the only job with this id or id prefix. A
// filter leaves out jobs that the command does not apply to.
func findJob(ctx context.Context, c *api.Client, prefix, filter string) (id, namespace string, err error) {
	prefix = strings.TrimSpace(prefix)
	q := query(ctx, "")
	q.Prefix, q.Filter, q.PerPage = prefix, filter, 20
	jobs, _, err := c.Jobs().List(q)
	if matches := matching[filter]; matches != nil && err != nil && strings.Contains(err.Error(), "failed to create result paginator") {
		q.Filter = ""
		jobs, _, err = c.Jobs().List(q)
		jobs = slices.DeleteFunc(jobs, func(j *api.JobListStub) bool { return !matches(j) })
	}
	if err != nil {
		if strings.Contains(err.Error(), "Permission denied") {
			return prefix, "", nil // a token that cannot list jobs may still give access to this one
		}
		return "", "", failed(fmt.Sprintf("look for job %q", prefix), err)
	}
	at := slices.IndexFunc(jobs, func(j *api.JobListStub) bool { return j.ID == prefix })
	// The same id can be in several namespaces.
	again := at >= 0 && slices.ContainsFunc(jobs[at+1:], func(j *api.JobListStub) bool { return j.ID == prefix })
	switch {
	case at >= 0 && !again:
		return jobs[at].ID, namespaceOf(jobs[at]), nil
	case len(jobs) == 1:
		return jobs[0].ID, namespaceOf(jobs[0]), nil
	case len(jobs) == 0 && filter == "":
		return "", "", fmt.Errorf("there is no job whose id begins with %q\nSee the jobs: nomad-lite job status%s", prefix, everywhere)
	case len(jobs) == 0:
		return "", "", fmt.Errorf("there is no such job whose id begins with %q\nSee the jobs and their types: nomad-lite job status%s", prefix, everywhere)
	}
	t := newTable("ID", "Namespace", "Type", "Status")
	for _, j := range jobs {
		t.row(j.ID, namespaceOf(j), jobType(j), j.Status)
	}
	return "", "", ambiguous("job", prefix, t)
}

// These filters select the jobs that a command applies to.
const (
	onlyParameterized = `ParentID == "" and ParameterizedJob is not nil`
	onlyPeriodic      = "Periodic is not nil"
)

// matching holds the same filters for older servers, which cannot parse such expressions.
var matching = map[string]func(*api.JobListStub) bool{
	onlyParameterized: func(j *api.JobListStub) bool { return j.ParentID == "" && j.ParameterizedJob },
	onlyPeriodic:      func(j *api.JobListStub) bool { return j.Periodic },
}

// findJob also returns the client that has found the job.
func (f *clientFlags) findJob(ctx context.Context, prefix, filter string) (c *api.Client, id, namespace string, err error) {
	if c, err = f.client(); err != nil {
		return nil, "", "", err
	}
	id, namespace, err = findJob(ctx, c, prefix, filter)
	return c, id, namespace, err
}

// everywhere is the flag that shows all namespaces.
const everywhere = " -namespace '*'"

// namespaceOf returns the namespace of a listed job. Older agents report it only in the
// summary.
func namespaceOf(j *api.JobListStub) string {
	if j.Namespace == "" && j.JobSummary != nil {
		return j.JobSummary.Namespace
	}
	return j.Namespace
}

// jobType returns the type of a listed job, with the suffix /periodic or /parameterized.
func jobType(j *api.JobListStub) string {
	kind := j.Type
	if j.Periodic {
		kind += "/periodic"
	}
	if j.ParameterizedJob {
		kind += "/parameterized"
	}
	return kind
}

func ambiguous(noun, prefix string, t *table) error {
	p := new(page)
	p.table(t)
	return fmt.Errorf("%q is the beginning of several ids: which %s is meant?\n\n%s", prefix, noun, strings.TrimRight(p.text.String(), "\n"))
}

// resource describes one kind of object with an id.
type resource[T any] struct {
	noun string
	path string // path of the list; see DESIGN.md for why it is no method of api.Client
	id   func(T) string
	// head and row are the columns that distinguish objects, beside the id.
	head []string
	row  func(T) []any
}

var allocKind = resource[*api.AllocationListStub]{
	noun: "allocation",
	path: "/v1/allocations",
	id:   func(a *api.AllocationListStub) string { return a.ID },
	head: []string{"Name", "Version", "Desired", "Status", "Created"},
	row: func(a *api.AllocationListStub) []any {
		return []any{a.Name, a.JobVersion, a.DesiredStatus, a.ClientStatus, when(a.CreateTime, false)}
	},
}

var evalKind = resource[*api.Evaluation]{
	noun: "evaluation",
	path: "/v1/evaluations",
	id:   func(e *api.Evaluation) string { return e.ID },
	head: []string{"Job", "Triggered By", "Status"},
	row:  func(e *api.Evaluation) []any { return []any{e.JobID, e.TriggeredBy, e.Status} },
}

var deploymentKind = resource[*api.Deployment]{
	noun: "deployment",
	path: "/v1/deployments",
	id:   func(d *api.Deployment) string { return d.ID },
	head: []string{"Job", "Version", "Status"},
	row:  func(d *api.Deployment) []any { return []any{d.JobID, d.JobVersion, d.Status} },
}

var nodeKind = resource[*api.NodeListStub]{
	noun: "node",
	path: "/v1/nodes",
	id:   func(n *api.NodeListStub) string { return n.ID },
	head: []string{"Name", "Datacenter", "Eligibility", "Status"},
	row:  func(n *api.NodeListStub) []any { return []any{n.Name, n.Datacenter, n.SchedulingEligibility, n.Status} },
}

// find returns the only object with this id or id prefix.
func (k *resource[T]) find(ctx context.Context, c *api.Client, prefix string) (T, error) {
	var nothing T
	digits := hexDigits(prefix)
	if len(digits) < 2 {
		return nothing, fmt.Errorf("%q is too short: give at least two characters of the id of the %s", prefix, k.noun)
	}
	all, err := k.begin(ctx, c, digits)
	if err != nil {
		return nothing, failed(fmt.Sprintf("look for %s %q", k.noun, prefix), err)
	}
	switch len(all) {
	case 0:
		return nothing, fmt.Errorf("there is no %s whose id begins with %q\nIn another namespace? Add%s", k.noun, prefix, everywhere)
	case 1:
		return all[0], nil
	}
	t := newTable(append([]string{"ID"}, k.head...)...)
	for _, one := range all {
		t.row(append([]any{k.id(one)}, k.row(one)...)...)
	}
	return nothing, ambiguous(k.noun, prefix, t)
}

// begin returns the objects whose id has this prefix of hexadecimal digits.
func (k *resource[T]) begin(ctx context.Context, c *api.Client, digits string) ([]T, error) {
	q := query(ctx, "")
	q.Prefix = digits[:len(digits)&^1] // servers reject half a byte
	var all []T
	if _, err := c.Raw().Query(k.path, &all, q); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(one T) bool { return !strings.HasPrefix(hexDigits(k.id(one)), digits) }), nil
}

// complete suggests ids.
func (k *resource[T]) complete(f *clientFlags) completer {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return f.suggest(cmd.Context(), func(ctx context.Context, c *api.Client) ([]string, error) { return k.suggest(ctx, c, begun) })
	}
}

func (k *resource[T]) suggest(ctx context.Context, c *api.Client, begun string) (ids []string, err error) {
	all, err := k.begin(ctx, c, hexDigits(begun))
	for _, one := range all {
		about := fmt.Sprintln(k.row(one)...)
		ids = append(ids, cobra.CompletionWithDesc(k.id(one), strings.TrimSpace(about)))
	}
	return ids, err
}

func hexDigits(id string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimSpace(id), "-", ""))
}
