package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// schemaWait is how long a request waits for drivers to say what they take.
const schemaWait = time.Second

// configFaults compares the config blocks of a job's tasks with what their drivers
// take. all is false if a driver is not there, or does not answer: what it takes
// is not known.
func (a *API) configFaults(ctx context.Context, job *api.Job) (faults []string, all bool) {
	ctx, cancel := context.WithTimeout(ctx, schemaWait)
	defer cancel()
	schemas := make(map[string]*hclspec.Spec)
	all = true
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			schema, asked := schemas[t.Driver]
			if !asked {
				var err error
				if schema, err = a.config.Node.TaskConfigSchema(ctx, t.Driver); err != nil {
					a.logger.Debug("config blocks not checked", "driver", t.Driver, "error", err)
				}
				schemas[t.Driver] = schema
			}
			if schema == nil {
				all = false
				continue
			}
			for _, text := range hclspec.Messages(schema.Check(t.Config)) {
				faults = append(faults, fmt.Sprintf("Task group %s, task %s: driver %s: config: %s", val(g.Name), t.Name, t.Driver, text))
			}
		}
	}
	return faults, all
}

// configWarnings are the same for a job that is taken all the same: another
// version of the driver may be there when it is placed.
func (a *API) configWarnings(ctx context.Context, job *api.Job) []string {
	faults, _ := a.configFaults(ctx, job)
	for i, text := range faults {
		faults[i] = text + " The task will fail when it is started."
	}
	return faults
}
