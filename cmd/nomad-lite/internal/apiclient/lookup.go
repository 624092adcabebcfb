package apiclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

// FindJob returns the ID and the namespace of the only job with this ID or ID prefix. filter is ParameterizedJobsFilter
// or PeriodicJobsFilter for a command that applies only to such jobs, or else "".
func FindJob(ctx context.Context, c *api.Client, prefix, filter string) (id, namespace string, err error) {
	prefix = strings.TrimSpace(prefix)
	q := QueryOptions(ctx, "")
	q.Prefix, q.Filter, q.PerPage = prefix, filter, 20
	jobs, _, err := c.Jobs().List(q)
	if matches := jobFilterFuncs[filter]; matches != nil && err != nil && strings.Contains(err.Error(), "failed to create result paginator") {
		q.Filter = ""
		jobs, _, err = c.Jobs().List(q)
		jobs = slices.DeleteFunc(jobs, func(j *api.JobListStub) bool { return !matches(j) })
	}
	if err != nil {
		if strings.Contains(err.Error(), "Permission denied") {
			return prefix, "", nil // a token that cannot list jobs may still give access to this one
		}
		return "", "", WrapErrorWithAdvice(fmt.Sprintf("look for job %q", prefix), err)
	}
	at := slices.IndexFunc(jobs, func(j *api.JobListStub) bool { return j.ID == prefix })
	// The same id can be in several namespaces.
	again := at >= 0 && slices.ContainsFunc(jobs[at+1:], func(j *api.JobListStub) bool { return j.ID == prefix })
	switch {
	case at >= 0 && !again:
		return jobs[at].ID, JobNamespace(jobs[at]), nil
	case len(jobs) == 1:
		return jobs[0].ID, JobNamespace(jobs[0]), nil
	case len(jobs) == 0:
		notFound := fmt.Sprintf("No %sjob(s) with prefix or ID %q found", filterNouns[filter], prefix)
		return "", "", fmt.Errorf("%s\nSee the jobs and their types: nomad-lite job status%s", notFound, AllNamespacesFlag)
	}
	t := output.NewTable("ID", "Namespace", "Type", "Priority", "Status", "Submit Date")
	for _, j := range jobs {
		t.AddRow(j.ID, JobNamespace(j), JobType(j), j.Priority, j.Status, output.FormatDate(j.SubmitTime))
	}
	return "", "", NewAmbiguousPrefixError(fmt.Sprintf("Prefix %q matched multiple jobs", prefix), t)
}

// These filter expressions are for commands that apply only to parameterized or only to periodic jobs.
const (
	ParameterizedJobsFilter = `ParentID == "" and ParameterizedJob is not nil`
	PeriodicJobsFilter      = "Periodic is not nil"
)

// filterNouns maps a filter to the kind of jobs that it selects, for error messages.
var filterNouns = map[string]string{ParameterizedJobsFilter: "parameterized ", PeriodicJobsFilter: "periodic "}

// jobFilterFuncs maps a filter to a Go function with the same result, for old servers that cannot parse the filter.
var jobFilterFuncs = map[string]func(*api.JobListStub) bool{
	ParameterizedJobsFilter: func(j *api.JobListStub) bool { return j.ParentID == "" && j.ParameterizedJob },
	PeriodicJobsFilter:      func(j *api.JobListStub) bool { return j.Periodic },
}

// FindJob does the same as the function FindJob, and also returns the client that it has used.
func (f *Flags) FindJob(ctx context.Context, prefix, filter string) (c *api.Client, id, namespace string, err error) {
	if c, err = f.Client(); err != nil {
		return nil, "", "", err
	}
	id, namespace, err = FindJob(ctx, c, prefix, filter)
	return c, id, namespace, err
}

// AllNamespacesFlag is appended to a suggested command to make it show all namespaces.
const AllNamespacesFlag = " -namespace '*'"

// JobNamespace returns the namespace of a listed job, which old agents report only in the job's summary.
func JobNamespace(j *api.JobListStub) string {
	if j.Namespace == "" && j.JobSummary != nil {
		return j.JobSummary.Namespace
	}
	return j.Namespace
}

// JobType returns the type of a listed job, with the suffix /periodic or /parameterized.
func JobType(j *api.JobListStub) string {
	kind := j.Type
	if j.Periodic {
		kind += "/periodic"
	}
	if j.ParameterizedJob {
		kind += "/parameterized"
	}
	return kind
}

// ErrAmbiguousPrefix is wrapped by the errors of NewAmbiguousPrefixError.
var ErrAmbiguousPrefix = errors.New("ambiguous prefix")

// NewAmbiguousPrefixError returns the error for a prefix that several objects have. The table lists these objects; the
// sentence above the table is Nomad's.
func NewAmbiguousPrefixError(sentence string, t *output.Table) error {
	p := new(output.Page)
	p.AddTable(t)
	return ambiguousPrefixError{sentence + "\n\n" + strings.TrimRight(p.Text.String(), "\n")}
}

type ambiguousPrefixError struct{ text string }

func (e ambiguousPrefixError) Error() string { return e.text }

func (e ambiguousPrefixError) Unwrap() error { return ErrAmbiguousPrefix }

// ObjectLookup describes how to find the objects of one kind, such as allocations, by the prefix of their ID.
type ObjectLookup[T any] struct {
	noun         string
	listPath     string // API path of the list of objects; see DESIGN.md for why it is not a method of api.Client
	idOf         func(T) string
	hasNamespace bool // objects of this kind belong to a namespace
	// columnTitlesAfterID and cellsAfterID are the columns after the ID in the table of the objects that match an
	// ambiguous prefix. The columns are Nomad's.
	columnTitlesAfterID     []string
	cellsAfterID            func(T) []any
	completionDescriptionOf func(T) string // returns the description that a shell's completion shows next to an object's ID
}

// AllocationLookup looks up allocations.
var AllocationLookup = ObjectLookup[*api.AllocationListStub]{
	noun:                "allocation",
	listPath:            "/v1/allocations",
	idOf:                func(a *api.AllocationListStub) string { return a.ID },
	hasNamespace:        true,
	columnTitlesAfterID: []string{"Node ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified", "Job ID"},
	cellsAfterID: func(a *api.AllocationListStub) []any {
		return []any{
			output.TruncateID(a.NodeID), a.TaskGroup, a.JobVersion, a.DesiredStatus, a.ClientStatus,
			output.FormatAgeUnlessVerbose(a.CreateTime, false), output.FormatAgeUnlessVerbose(a.ModifyTime, false), a.JobID,
		}
	},
	completionDescriptionOf: func(a *api.AllocationListStub) string { return fmt.Sprintf("%s, %s", a.Name, a.ClientStatus) },
}

// EvaluationLookup looks up evaluations.
var EvaluationLookup = ObjectLookup[*api.Evaluation]{
	noun:                "evaluation",
	listPath:            "/v1/evaluations",
	idOf:                func(e *api.Evaluation) string { return e.ID },
	hasNamespace:        true,
	columnTitlesAfterID: []string{"Priority", "Triggered By", "Job ID", "Namespace", "Node ID", "Status", "Placement Failures"},
	cellsAfterID: func(e *api.Evaluation) []any {
		return []any{e.Priority, e.TriggeredBy, e.JobID, e.Namespace, output.TruncateID(e.NodeID), e.Status, PlacementFailureCell(e)}
	},
	completionDescriptionOf: func(e *api.Evaluation) string { return fmt.Sprintf("%s, %s, %s", e.JobID, e.TriggeredBy, e.Status) },
}

// PlacementFailureCell returns the table cell that shows whether an evaluation has failed to place
// allocations.
func PlacementFailureCell(e *api.Evaluation) string {
	if e.Status == api.EvalStatusPending || e.Status == api.EvalStatusBlocked {
		return "N/A - In Progress"
	}
	return fmt.Sprint(len(e.FailedTGAllocs) > 0)
}

// DeploymentLookup looks up deployments.
var DeploymentLookup = ObjectLookup[*api.Deployment]{
	noun:                "deployment",
	listPath:            "/v1/deployments",
	idOf:                func(d *api.Deployment) string { return d.ID },
	hasNamespace:        true,
	columnTitlesAfterID: []string{"Job ID", "Job Version", "Status", "Description"},
	cellsAfterID:        func(d *api.Deployment) []any { return []any{d.JobID, d.JobVersion, d.Status, d.StatusDescription} },
	completionDescriptionOf: func(d *api.Deployment) string {
		return fmt.Sprintf("%s, version %d, %s", d.JobID, d.JobVersion, d.Status)
	},
}

// NodeLookup looks up nodes.
var NodeLookup = ObjectLookup[*api.NodeListStub]{
	noun:                "node",
	listPath:            "/v1/nodes",
	idOf:                func(n *api.NodeListStub) string { return n.ID },
	columnTitlesAfterID: []string{"DC", "Name", "Class", "Drain", "Eligibility", "Status"},
	cellsAfterID: func(n *api.NodeListStub) []any {
		return []any{n.Datacenter, n.Name, n.NodeClass, n.Drain, n.SchedulingEligibility, n.Status}
	},
	completionDescriptionOf: func(n *api.NodeListStub) string {
		return fmt.Sprintf("%s, %s, %s", n.Name, n.SchedulingEligibility, n.Status)
	},
}

// HostVolumeLookup looks up dynamic host volumes.
var HostVolumeLookup = ObjectLookup[*api.HostVolumeStub]{
	noun:                "host volume",
	listPath:            "/v1/volumes?type=host",
	idOf:                func(v *api.HostVolumeStub) string { return v.ID },
	hasNamespace:        true,
	columnTitlesAfterID: []string{"Name", "Namespace", "Plugin ID", "Node ID", "Node Pool", "State"},
	cellsAfterID: func(v *api.HostVolumeStub) []any {
		return []any{v.Name, v.Namespace, v.PluginID, output.TruncateID(v.NodeID), v.NodePool, v.State}
	},
	completionDescriptionOf: func(v *api.HostVolumeStub) string { return fmt.Sprintf("%s, %s", v.Name, v.State) },
}

// VolumeClaimLookup looks up the claims by which task groups with sticky volumes keep their host volumes.
var VolumeClaimLookup = ObjectLookup[*api.TaskGroupHostVolumeClaim]{
	noun:                "claim",
	listPath:            "/v1/volumes/claims",
	idOf:                func(c *api.TaskGroupHostVolumeClaim) string { return c.ID },
	hasNamespace:        true,
	columnTitlesAfterID: []string{"Namespace", "Job ID", "Volume ID", "Volume Name"},
	cellsAfterID: func(c *api.TaskGroupHostVolumeClaim) []any {
		return []any{c.Namespace, c.JobID, output.TruncateID(c.VolumeID), c.VolumeName}
	},
	completionDescriptionOf: func(c *api.TaskGroupHostVolumeClaim) string { return fmt.Sprintf("%s, %s", c.JobID, c.VolumeName) },
}

// ConnectAndFind returns the client of f, and FindOneByPrefix's result.
func ConnectAndFind[T any](ctx context.Context, f *Flags, k *ObjectLookup[T], prefix string) (c *api.Client, found T, err error) {
	if c, err = f.Client(); err == nil {
		found, err = FindOneByPrefix(ctx, c, k, prefix)
	}
	return c, found, err
}

// FindOneByPrefix returns the only object of a kind with this ID or ID prefix. DESIGN.md gives the reason why it is not
// a method of api.Client.
func FindOneByPrefix[T any](ctx context.Context, c *api.Client, k *ObjectLookup[T], prefix string) (T, error) {
	var zero T
	digits := normalizeIDPrefix(prefix)
	if len(digits) < 2 {
		//lint:ignore ST1005 the text is Nomad's
		return zero, fmt.Errorf("Identifier must contain at least two characters. The id of the %s is given as %q", k.noun, prefix)
	}
	all, err := k.listWithPrefix(ctx, c, digits)
	if err != nil {
		return zero, WrapErrorWithAdvice(fmt.Sprintf("look for %s %q", k.noun, prefix), err)
	}
	switch len(all) {
	case 0:
		notFound := fmt.Sprintf("No %s(s) with prefix or id %q found", k.noun, prefix)
		if k.hasNamespace {
			notFound += "\nIn another namespace? Add" + AllNamespacesFlag
		}
		return zero, errors.New(notFound)
	case 1:
		return all[0], nil
	}
	t := output.NewTable(append([]string{"ID"}, k.columnTitlesAfterID...)...)
	for _, one := range all {
		t.AddRow(append([]any{k.idOf(one)}, k.cellsAfterID(one)...)...)
	}
	return zero, NewAmbiguousPrefixError(fmt.Sprintf("Prefix matched multiple %ss", k.noun), t)
}

// listWithPrefix returns the objects whose id has this prefix of hexadecimal digits.
func (o *ObjectLookup[T]) listWithPrefix(ctx context.Context, c *api.Client, hexPrefix string) ([]T, error) {
	q := QueryOptions(ctx, "")
	q.Prefix = hexPrefix[:len(hexPrefix)&^1] // servers reject a prefix with an odd number of digits
	var all []T
	if _, err := c.Raw().Query(o.listPath, &all, q); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(one T) bool { return !strings.HasPrefix(normalizeIDPrefix(o.idOf(one)), hexPrefix) }), nil
}

// CompleteID suggests IDs of the objects of one kind.
func CompleteID[T any](f *Flags, k *ObjectLookup[T]) cli.Completer {
	return func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return f.CompleteFromAgent(cmd.Context(), func(ctx context.Context, c *api.Client) ([]string, error) { return k.suggestIDs(ctx, c, toComplete) })
	}
}

func (o *ObjectLookup[T]) suggestIDs(ctx context.Context, c *api.Client, toComplete string) (ids []string, err error) {
	all, err := o.listWithPrefix(ctx, c, normalizeIDPrefix(toComplete))
	for _, one := range all {
		ids = append(ids, cobra.CompletionWithDesc(o.idOf(one), o.completionDescriptionOf(one)))
	}
	return ids, err
}

func normalizeIDPrefix(id string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimSpace(id), "-", ""))
}

// RequireOneJobArg is a cobra.PositionalArgs function for a command that takes the ID of one job.
func RequireOneJobArg(cmd *cobra.Command, args []string) error {
	return cli.RequireArgCount(1, 1, "one argument: the id of a job, or its beginning")(cmd, args)
}
