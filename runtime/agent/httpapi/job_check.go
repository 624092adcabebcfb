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

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobChecker validates jobs against the rules of this build and against the hooks and drivers of the
// node.
type jobChecker struct {
	store  *store.Store
	node   Node
	region string
	logger hclog.Logger
}

// submittedJob is the job in the body of a request, with the namespace and region that the body names.
type submittedJob struct {
	Job       *api.Job
	Region    string
	Namespace string
}

// decodeJob decodes the body of a request and returns the canonical form of its job. sent points to the
// part of body that has the job.
func (c *jobChecker) decodeJob(r *request, body any, sent *submittedJob) (*api.Job, error) {
	if err := r.decodeBody(body, maxJobBytes, false); err != nil {
		return nil, err
	}
	job := sent.Job
	switch {
	case job == nil:
		return nil, badRequest("Job must be specified")
	case val(job.ID) == "":
		return nil, badRequest("Job ID hasn't been provided")
	case r.id != "" && r.id != *job.ID:
		return nil, badRequest("Job ID does not match name")
	}
	if namespace := cmp.Or(r.query.Get("namespace"), sent.Namespace); namespace != "" {
		job.Namespace = &namespace
	}
	region := cmp.Or(r.query.Get("region"), sent.Region, val(job.Region), api.GlobalRegion)
	if region == api.GlobalRegion {
		region = c.region // the region of this agent may have another name than "global"
	}
	if region != c.region {
		return nil, errNoRegion
	}
	job.Region = &region
	model.Canonicalize(job)
	return job, nil
}

// hookStartTimeout is how long a registration waits for hook plugins that are starting.
const hookStartTimeout = 10 * time.Second

// checkJob returns an error for an invalid job or for a feature that this build does not support. A
// missing driver is not an error, because it may be installed later. A missing hook is an error,
// because otherwise it would be noticed only when the job runs. The warnings are about hooks that
// cannot start at present.
func (c *jobChecker) checkJob(ctx context.Context, job *api.Job) (warnings []string, err error) {
	scales := func(g *api.TaskGroup) bool { return g.Scaling != nil }
	if val(job.Type) == api.JobTypeSystem && slices.ContainsFunc(job.TaskGroups, scales) {
		return nil, badRequest("Task groups with job type system do not support scaling blocks")
	}
	if err := model.Validate(job, c.namespaceNames()...); err != nil {
		return nil, err
	}
	var faultLines []string
	ctx, cancel := context.WithTimeout(ctx, hookStartTimeout)
	defer cancel()
	attachments, trouble := c.node.CheckHookAttachments(ctx, job)
	for _, err := range trouble {
		warnings = append(warnings, fmt.Sprintf("What the job says to a hook was not checked: %v.", err))
	}
	for _, refusal := range append(model.UnsupportedParts(job, func(string) bool { return true }), attachments...) {
		if !refusal.ForegroundOnly {
			faultLines = append(faultLines, strings.Join(refusal.Path, ".")+": "+refusal.Reason)
		}
	}
	if len(faultLines) == 0 {
		return warnings, nil
	}
	return warnings, badRequest("This job cannot run here:\n" + strings.Join(faultLines, "\n"))
}

// namespaceNames returns the names of the stored namespaces, for the validation of jobs.
func (c *jobChecker) namespaceNames() []string {
	var names []string
	for _, n := range c.store.Snapshot().Namespaces(nil, "") {
		names = append(names, n.Name)
	}
	return names
}

// schemaTimeout is how long a request waits for the schemas of drivers.
const schemaTimeout = time.Second

// taskConfigErrors compares the config blocks of a job's tasks with the schemas of their drivers. all is false
// if the schema of a driver is unknown, because the driver is missing or does not reply.
func (c *jobChecker) taskConfigErrors(ctx context.Context, job *api.Job) (faults []string, all bool) {
	wait, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	type schemaResult struct {
		schema *hclspec.Spec
		err    error
	}
	answers := make(map[string]schemaResult)
	all = true
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			if ctx.Err() != nil { // the client has disconnected
				return nil, false
			}
			driver, asked := answers[t.Driver]
			if !asked {
				driver.schema, driver.err = c.node.TaskConfigSchema(wait, t.Driver)
				answers[t.Driver] = driver
				if driver.err != nil {
					c.logger.Debug("config blocks not checked", "driver", t.Driver, "error", driver.err)
				}
			}
			if driver.err != nil {
				all = false
				continue
			}
			schema := driver.schema
			if schema == nil {
				continue // the driver has no schema and accepts every block
			}
			for _, text := range block.Messages(block.Check(ctx, schema, t.Config)) {
				faults = append(faults, fmt.Sprintf("Task group %s, task %s: driver %s: config: %s", val(g.Name), t.Name, t.Driver, text))
			}
		}
	}
	return faults, all && ctx.Err() == nil
}

// taskConfigWarnings returns the errors of taskConfigErrors as warnings for a job that is registered. They are not
// errors because another version of the driver may run when the job is placed.
func (c *jobChecker) taskConfigWarnings(ctx context.Context, job *api.Job) []string {
	faults, _ := c.taskConfigErrors(ctx, job)
	for i, text := range faults {
		faults[i] = text + " The task will fail when it is started."
	}
	return faults
}
