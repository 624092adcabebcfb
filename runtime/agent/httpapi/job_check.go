package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobChecker decodes submitted jobs, and checks with package admission whether the node can run them.
type jobChecker struct {
	store   *store.Store
	plugins JobPlugins
	region  string
	limits  model.JobLimits
	logger  hclog.Logger
}

// submittedJob is the job in the body of a request, with the namespace and region that the body names.
type submittedJob struct {
	Job       *api.Job
	Region    string
	Namespace string
}

// decodeCanonicalJob decodes the body of a request and returns the canonical form of its job. jobInBody points to the
// part of body that has the job.
func (c *jobChecker) decodeCanonicalJob(r *request, body any, jobInBody *submittedJob) (*api.Job, error) {
	if err := r.decodeBody(body, maxJobBytes, false); err != nil {
		return nil, err
	}
	job := jobInBody.Job
	switch {
	case job == nil:
		return nil, badRequestError("Job must be specified")
	case pointer.Value(job.ID) == "":
		return nil, badRequestError("Job ID hasn't been provided")
	case r.pathID != "" && r.pathID != *job.ID:
		return nil, badRequestError("Job ID does not match name")
	}
	if namespace := cmp.Or(r.query.Get("namespace"), jobInBody.Namespace); namespace != "" {
		job.Namespace = &namespace
	}
	region := cmp.Or(jobInBody.Region, r.query.Get("region"), pointer.Value(job.Region), api.GlobalRegion)
	if region == api.GlobalRegion {
		region = c.region // the region of this agent may have another name than "global"
	}
	if region != c.region {
		return nil, errNoRegion
	}
	if err := r.requireIn(cmp.Or(pointer.Value(job.Namespace), api.DefaultNamespace)); err != nil {
		return nil, err
	}
	job.Region = &region
	if pointer.Value(job.Priority) == 0 {
		job.Priority = new(c.limits.WithDefaults().DefaultPriority)
	}
	model.Canonicalize(job)
	return job, nil
}

// hookStartTimeout is how long a request waits for hook plugins that are starting, and schemaTimeout how long it waits
// for the schemas of drivers.
const (
	hookStartTimeout = 10 * time.Second
	schemaTimeout    = time.Second
)

// checkAdmission returns whether the node can run a canonical job. The error is the reply to a request whose job is
// invalid, or whose job the node cannot run.
func (c *jobChecker) checkAdmission(ctx context.Context, job *api.Job) (admission.CheckResult, error) {
	node := c.newAdmissionNode(*job.Namespace)
	if admission.ValidationError(job, node) == nil { // the answer about an invalid job does not wait for a hook
		c.addHookFaults(ctx, job, &node)
	}
	c.addDriverDescriptions(ctx, job, &node)
	answer := admission.Check(ctx, job, node, admission.CheckOptions{Caller: admission.API})
	switch {
	case answer.IsMalformedRequest:
		return answer, badRequestError(answer.ValidationErr.Error())
	case answer.ValidationErr != nil:
		return answer, answer.ValidationErr
	}
	lines := refusalLines(answer.RefusalsWithEffect(admission.Rejects))
	if len(lines) == 0 {
		return answer, nil
	}
	return answer, badRequestError("This job cannot run here:\n" + strings.Join(lines, "\n"))
}

// newAdmissionNode returns what the state has about the node and the namespace of a job. Drivers and most requirements for the
// node are unknown facts, because both can change before the job is placed.
func (c *jobChecker) newAdmissionNode(jobNamespace string) admission.Node {
	state := c.store.Snapshot()
	node := admission.Node{Region: c.region, Namespaces: []*api.Namespace{}, ConfigSchemaByDriver: make(map[string]admission.DriverConfigSchema), CapabilitiesByDriver: make(map[string]*driver.Capabilities), SchedulerConfig: state.SchedulerConfig(nil), JobLimits: c.limits}
	node.VariableExists = func(path string) bool { return state.Variable(nil, jobNamespace, path) != nil }
	node.HasCSIVolume = func(source string) bool {
		return slices.ContainsFunc(state.Nodes(nil, ""), func(n *api.Node) bool {
			f := admission.NodeFeatures{NodeFacts: model.NodeFactsOf(n), HostVolumes: n.HostVolumes}
			return f.HasCSIVolume(source)
		})
	}
	node.Namespaces = append(node.Namespaces, state.Namespaces(nil, "")...)
	return node
}

// addHookFaults adds the faults in the hook attachments of a job. It waits for hook plugins that are starting.
func (c *jobChecker) addHookFaults(ctx context.Context, job *api.Job, node *admission.Node) {
	untilHooks, cancel := context.WithTimeout(ctx, hookStartTimeout)
	defer cancel()
	node.HookFaults, node.HookCheckErrors = c.plugins.CheckHookAttachments(untilHooks, job)
}

// addDriverDescriptions adds the schemas and capabilities of the drivers of a job. It waits for drivers that are starting.
func (c *jobChecker) addDriverDescriptions(ctx context.Context, job *api.Job, node *admission.Node) {
	untilSchemas, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	for _, name := range admission.DriverNames(job) {
		if ctx.Err() != nil { // the client has disconnected
			break
		}
		spec, err := c.plugins.TaskConfigSchema(untilSchemas, name)
		node.ConfigSchemaByDriver[name] = admission.DriverConfigSchema{Spec: spec, Err: err}
		if err == nil {
			node.CapabilitiesByDriver[name], err = c.plugins.DriverCapabilities(untilSchemas, name)
		}
		if err != nil {
			c.logger.Debug("driver not compared with the job", "driver", name, "error", err)
		}
	}
}

// configFaults returns the errors in the config blocks of a parsed job.
func (c *jobChecker) configFaults(ctx context.Context, job *api.Job) []jobspec.ConfigFault {
	node := admission.Node{ConfigSchemaByDriver: make(map[string]admission.DriverConfigSchema), CapabilitiesByDriver: make(map[string]*driver.Capabilities)}
	c.addDriverDescriptions(ctx, job, &node)
	found, _ := admission.CheckConfigs(ctx, job, node.ConfigSchemaByDriver)
	var faults []jobspec.ConfigFault
	for _, f := range found {
		faults = append(faults, jobspec.ConfigFault{Group: f.Group, Task: f.Task, Text: f.Text})
	}
	return faults
}

// refusalLines converts refusals to lines of a reply, each with the path of the refused part.
func refusalLines(refusals []admission.Refusal) []string {
	lines := make([]string, len(refusals))
	for i, r := range refusals {
		lines[i] = strings.Join(r.Path, ".") + ": " + r.Text
	}
	return lines
}

// configFaultLines converts faults in the config blocks of tasks to lines of a reply.
func configFaultLines(faults []admission.ConfigFault) []string {
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = fmt.Sprintf("Task group %s, task %s: driver %s: config: %s", f.Group, f.Task, f.Driver, f.Text)
	}
	return lines
}

// driverFaultLines returns a line for each part of a job that its driver cannot run, and for each error in a config block.
func driverFaultLines(answer admission.CheckResult) []string {
	return append(refusalLines(answer.RefusalsWithEffect(admission.Warns)), configFaultLines(answer.ConfigFaults)...)
}

// driverFaultWarnings returns the lines of driverFaultLines as warnings for a job that is registered. They are no errors,
// because the driver may have another version when the job is placed.
func driverFaultWarnings(answer admission.CheckResult) []string {
	lines := driverFaultLines(answer)
	for i, text := range lines {
		lines[i] = strings.TrimSuffix(text, ".") + ". The task will fail when it is started."
	}
	return lines
}
