package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/jobspec"
)

// checkConfigs compares the config blocks of the tasks with what their drivers
// take, and says what does not fit, with its place in the file. The drivers are
// the names of those that there are; each is started and asked. One that cannot be
// started is no fault of the job, and is only told of. The answer is whether all
// fits.
func (j *jobFile) checkConfigs(ctx context.Context, plugins pluginFlags, drivers []string, s *streams) (bool, error) {
	wanted := slices.DeleteFunc(j.drivers(), func(name string) bool { return !slices.Contains(drivers, name) })
	if len(wanted) == 0 {
		return true, nil
	}
	schemas, err := taskSchemas(ctx, plugins, wanted, s)
	if err != nil {
		return false, err
	}
	var faults hcl.Diagnostics
	eachTask(j.job, func(group *api.TaskGroup, task *api.Task) {
		schema := schemas[task.Driver]
		if schema == nil {
			return
		}
		for _, text := range hclspec.Messages(schema.Check(task.Config)) {
			path := []string{"group", valueOf(group.Name), "task", task.Name, "config"}
			faults = append(faults, j.at(path, fmt.Sprintf("Task %q: %s", task.Name, text)))
		}
	})
	if len(faults) == 0 {
		return true, nil
	}
	fmt.Fprintln(s.err, "Driver configuration errors:")
	return false, jobspec.WriteDiagnostics(s.err, faults, j.file.Texts)
}

// taskSchemas asks drivers what they take.
func taskSchemas(ctx context.Context, plugins pluginFlags, wanted []string, s *streams) (schemas map[string]*hclspec.Spec, err error) {
	logger := hclog.NewNullLogger() // what does not start is told of here
	known, err := plugins.catalog(s, wanted, logger)
	if err != nil {
		return nil, err
	}
	a, err := agent.Open(ctx, agent.Config{Plugins: known, Version: buildVersion(), Logger: logger})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	schemas = make(map[string]*hclspec.Spec)
	for _, name := range wanted {
		if schemas[name], err = a.TaskConfigSchema(ctx, name); err != nil {
			fmt.Fprintf(s.err, "warning: config blocks for driver %q are not checked: %v\n", name, err)
		}
	}
	return schemas, nil
}
