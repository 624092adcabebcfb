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

// checkNodeAndConfigs compares the config blocks of the tasks with the schemas of their
// drivers and, if the job is valid, the requirements of the job with this machine. drivers
// are the names of the available drivers; each is started. It reports whether all checks
// pass.
func (j *jobFile) checkNodeAndConfigs(ctx context.Context, plugins localPlugins, drivers []string, valid bool, s *streams) (good bool, err error) {
	wanted := slices.DeleteFunc(j.drivers(), func(name string) bool { return !slices.Contains(drivers, name) })
	if len(wanted) == 0 && !valid {
		return true, nil
	}
	asked := withPlugins(ctx, plugins, append([]string{}, wanted...), func(a *agent.Agent) {
		if good, err = j.askDrivers(ctx, a, wanted, s); err != nil || !valid {
			return
		}
		if err = a.Ready(ctx); err != nil {
			return
		}
		// All ports count as free, because the job itself can be running and use them.
		fits := false
		fits, err = j.checkRoom(s, a, func(int) bool { return true })
		good = good && fits
	})
	return good, errors.Join(err, asked)
}

// askDrivers prints the errors in the config blocks, with their places in the file. A
// driver that cannot be started is not an error of the job, and only reported.
func (j *jobFile) askDrivers(ctx context.Context, a *agent.Agent, wanted []string, s *streams) (bool, error) {
	schemas := make(map[string]*hclspec.Spec)
	for _, name := range wanted {
		schema, err := a.TaskConfigSchema(ctx, name)
		if err != nil {
			fmt.Fprintf(s.err, "warning: config blocks for driver %q are not checked: %v\n", name, err)
		}
		schemas[name] = schema
	}
	var faults hcl.Diagnostics
	eachTask(j.job, func(group *api.TaskGroup, task *api.Task) {
		schema := schemas[task.Driver]
		if schema == nil {
			return
		}
		for _, text := range hclspec.Messages(schema.Check(ctx, task.Config)) {
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

// withPlugins starts the plugins of these names, and calls do with their agent.
func withPlugins(ctx context.Context, plugins localPlugins, wanted []string, do func(*agent.Agent)) error {
	logger := hclog.NewNullLogger() // the caller reports plugins that do not start
	known, err := plugins.catalog(wanted, logger)
	if err != nil {
		return err
	}
	a, err := agent.Open(ctx, plugins.agent(known, logger))
	if err != nil {
		return err
	}
	do(a)
	return a.Close()
}

// checkHooks prints the errors in the job's hook attachments, with their places in the
// file, and the errors in the hook blocks of the configuration. It reports whether the job
// can run.
func (j *jobFile) checkHooks(ctx context.Context, plugins localPlugins, s *streams) (good bool, err error) {
	wanted := j.hooks()
	if len(wanted)+len(plugins.config.Hooks) == 0 {
		return true, nil
	}
	asked := withPlugins(ctx, plugins, append(wanted, plugins.hooks()...), func(a *agent.Agent) {
		for _, err := range a.CheckHooks(ctx) {
			fmt.Fprintf(s.err, "warning: hook block does not work: %v\n", err)
		}
		var trouble []error
		good, trouble, err = j.askHooks(ctx, a, s)
		s.warnOfHooks(trouble)
	})
	return good, errors.Join(err, asked)
}

// askHooks prints the errors that the hooks report in the job's attachments. It reports
// whether there are none; trouble holds the errors of hooks that could not be started.
func (j *jobFile) askHooks(ctx context.Context, a *agent.Agent, s *streams) (good bool, trouble []error, err error) {
	faults, trouble := a.CheckAttachments(ctx, j.job)
	if len(faults) == 0 {
		return true, trouble, nil
	}
	fmt.Fprintln(s.err, "Hooks of the job:")
	places := make(hcl.Diagnostics, 0, len(faults))
	for _, fault := range faults {
		places = append(places, j.at(fault.Path, fault.Reason))
	}
	return false, trouble, jobspec.WriteDiagnostics(s.err, places, j.file.Texts)
}

func (s *streams) warnOfHooks(trouble []error) {
	for _, err := range trouble {
		fmt.Fprintf(s.err, "warning: what the job says to a hook is not checked: %v\n", err)
	}
}
