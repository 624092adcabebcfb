package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// schemaWait is how long a request waits for the schemas of drivers.
const schemaWait = time.Second

// configFaults compares the config blocks of a job's tasks with the schemas of their drivers. all
// is false if a driver is missing or does not reply, so that its schema is unknown.
func (a *API) configFaults(ctx context.Context, job *api.Job) (faults []string, all bool) {
	wait, cancel := context.WithTimeout(ctx, schemaWait)
	defer cancel()
	type answer struct {
		schema *hclspec.Spec
		err    error
	}
	answers := make(map[string]answer)
	all = true
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			if ctx.Err() != nil { // the client has disconnected
				return nil, false
			}
			driver, asked := answers[t.Driver]
			if !asked {
				driver.schema, driver.err = a.config.Node.TaskConfigSchema(wait, t.Driver)
				answers[t.Driver] = driver
				if driver.err != nil {
					a.logger.Debug("config blocks not checked", "driver", t.Driver, "error", driver.err)
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
			for _, text := range hclspec.Messages(schema.Check(ctx, t.Config)) {
				faults = append(faults, fmt.Sprintf("Task group %s, task %s: driver %s: config: %s", val(g.Name), t.Name, t.Driver, text))
			}
		}
	}
	return faults, all && ctx.Err() == nil
}

// configWarnings returns the errors of configFaults as warnings for a job that is registered:
// another version of the driver may run when the job is placed.
func (a *API) configWarnings(ctx context.Context, job *api.Job) []string {
	faults, _ := a.configFaults(ctx, job)
	for i, text := range faults {
		faults[i] = text + " The task will fail when it is started."
	}
	return faults
}
