package jobfile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// CheckNodeAndDriverConfigs compares the config blocks of the tasks with the schemas of their
// drivers and, if the job is valid, the requirements of the job with this machine. drivers
// are the names of the available drivers; each is started if the job uses it, unless saved has its schema. It reports
// whether all checks pass.
func (j *File) CheckNodeAndDriverConfigs(ctx context.Context, plugins localplugins.Plugins, drivers []string, saved map[string]*hclspec.Spec, valid bool, s *cli.Streams) (good bool, err error) {
	wanted := slices.DeleteFunc(j.DriverNames(), func(name string) bool {
		_, isSaved := saved[name]
		return isSaved || !slices.Contains(drivers, name)
	})
	if len(wanted) == 0 && !valid {
		return j.checkConfigBlocks(ctx, saved, s)
	}
	asked := localplugins.RunWithAgent(ctx, plugins, append([]string{}, wanted...), func(a *agent.Agent) {
		schemas := readDriverSchemas(ctx, a, wanted, s)
		maps.Copy(schemas, saved)
		if good, err = j.checkConfigBlocks(ctx, schemas, s); err != nil || !valid {
			return
		}
		wait := a.WaitReady
		if j.RequestsDevices() {
			wait = func(ctx context.Context) error { return localplugins.WaitPlugins(ctx, a) } // a device plugin may start slowly
		}
		if err = wait(ctx); err != nil {
			return
		}
		// All ports count as free, because the job itself can be running and use them.
		fits := false
		fits, err = j.CheckCapacity(s, a, func(scheduler.HostPort) bool { return true })
		good = good && fits
	})
	return good, errors.Join(err, asked)
}

// CheckDriverConfigs prints the errors in the config blocks, with their places in the file. A
// driver that cannot be started is not an error of the job, and only reported.
func (j *File) CheckDriverConfigs(ctx context.Context, a *agent.Agent, wanted []string, s *cli.Streams) (bool, error) {
	return j.checkConfigBlocks(ctx, readDriverSchemas(ctx, a, wanted, s), s)
}

// readDriverSchemas returns the schemas of the drivers with the wanted names, and warns of drivers that cannot be
// started.
func readDriverSchemas(ctx context.Context, a *agent.Agent, wanted []string, s *cli.Streams) map[string]*hclspec.Spec {
	schemas := make(map[string]*hclspec.Spec)
	for _, name := range wanted {
		schema, err := a.TaskConfigSchema(ctx, name)
		if err != nil {
			fmt.Fprintf(s.Err, "warning: config blocks for driver %q are not checked: %v\n", name, err)
		}
		schemas[name] = schema
	}
	return schemas
}

// checkConfigBlocks prints the errors in the config blocks of the drivers that have a schema. It reports whether there
// are none.
func (j *File) checkConfigBlocks(ctx context.Context, schemas map[string]*hclspec.Spec, s *cli.Streams) (bool, error) {
	var configDiags hcl.Diagnostics
	apiclient.ForEachTask(j.Job, func(group *api.TaskGroup, task *api.Task) {
		schema := schemas[task.Driver]
		if schema == nil {
			return
		}
		for _, text := range block.Messages(block.Check(ctx, schema, task.Config)) {
			configDiags = append(configDiags, j.newConfigDiagnostic(apiclient.Deref(group.Name), task.Name, text))
		}
	})
	return j.printConfigErrors(s, configDiags)
}

// printConfigErrors prints errors in config blocks. It returns true if there are none.
func (j *File) printConfigErrors(s *cli.Streams, diags hcl.Diagnostics) (bool, error) {
	if len(diags) == 0 {
		return true, nil
	}
	fmt.Fprintln(s.Err, "Driver configuration errors:")
	return false, jobspec.WriteDiagnostics(s.Err, diags, j.File.SourceTexts)
}

// configPartPattern matches the attribute or block that a message of a driver's schema names.
var configPartPattern = regexp.MustCompile(`(?:named|attribute|argument) "([^"]+)"`)

// newConfigDiagnostic returns a diagnostic for an error in the config block of a task. Its position is
// the attribute that the message names, or else the block.
func (j *File) newConfigDiagnostic(group, task, message string) *hcl.Diagnostic {
	// Nomad's title is about the JSON form of the block.
	if rest, isUnknown := strings.CutPrefix(message, "Invalid label: "); isUnknown {
		message = "Unsupported argument: " + rest
	}
	path := []string{"group", group, "task", task, "config"}
	diag := j.newDiagnostic(path, fmt.Sprintf("Task %q: %s", task, message))
	part := configPartPattern.FindStringSubmatch(message)
	if part == nil || strings.HasPrefix(message, "Missing ") {
		return diag
	}
	if rng, ok := j.File.RangeOfName(part[1], path...); ok {
		diag.Subject = &rng
	}
	return diag
}

// CheckHooks prints the errors in the job's hook attachments, with their places in the
// file, and the errors in the hook blocks of the configuration. It reports whether the job
// can run.
func (j *File) CheckHooks(ctx context.Context, plugins localplugins.Plugins, s *cli.Streams) (good bool, err error) {
	wanted := j.HookNames()
	if len(wanted)+len(plugins.Config.Hooks) == 0 {
		return true, nil
	}
	asked := localplugins.RunWithAgent(ctx, plugins, append(wanted, plugins.HookNames()...), func(a *agent.Agent) {
		for _, err := range a.CheckHookRules(ctx) {
			fmt.Fprintf(s.Err, "warning: hook block does not work: %v\n", err)
		}
		var hookErrs []error
		good, hookErrs, err = j.CheckHookAttachments(ctx, a, s)
		PrintHookErrors(s, hookErrs)
	})
	return good, errors.Join(err, asked)
}

// CheckHookAttachments prints the errors that the hooks report in the job's attachments. It reports
// whether there are none; hookErrs holds the errors of hooks that could not be started.
func (j *File) CheckHookAttachments(ctx context.Context, a *agent.Agent, s *cli.Streams) (good bool, hookErrs []error, err error) {
	faults, hookErrs := a.CheckHookAttachments(ctx, j.Job)
	if len(faults) == 0 {
		return true, hookErrs, nil
	}
	fmt.Fprintln(s.Err, "Hooks of the job:")
	diags := make(hcl.Diagnostics, 0, len(faults))
	for _, fault := range faults {
		diags = append(diags, j.newDiagnostic(fault.Path, fault.Reason))
	}
	return false, hookErrs, jobspec.WriteDiagnostics(s.Err, diags, j.File.SourceTexts)
}

// PrintHookErrors prints the errors of hooks that could not be started, each once.
func PrintHookErrors(s *cli.Streams, hookErrs []error) {
	printed := make(map[string]bool)
	for _, err := range hookErrs {
		if text := err.Error(); !printed[text] {
			printed[text] = true
			fmt.Fprintf(s.Err, "warning: what the job says to a hook is not checked: %s\n", text)
		}
	}
}

// CheckCapacity prints which parts of a valid canonical job do not fit on the machine of an
// idle agent. It reports whether the job fits.
func (j *File) CheckCapacity(s *cli.Streams, a *agent.Agent, portFree func(scheduler.HostPort) bool) (bool, error) {
	node := scheduler.Node{NodeFacts: a.Node().TaskEnvNode().NodeFacts, IP: a.Host().IP, Devices: devices.NodeResources(a.DeviceGroups()), HostVolumes: a.Node().HostVolumes(), NetworkModes: append([]string{}, a.Host().NetworkModes...), HostNetworks: make(map[string]scheduler.HostNetwork)}
	for name, n := range a.Host().HostNetworks {
		node.HostNetworks[name] = scheduler.HostNetwork{Address: n.IP}
	}
	return j.checkPlacement(s, fmt.Sprintf("job %q does not fit on this machine:", *j.Job.ID), node, portFree)
}

// checkPlacement prints under a heading which parts of a valid canonical job do not fit on a node
// without allocations. It returns true if the job fits.
func (j *File) checkPlacement(s *cli.Streams, heading string, node scheduler.Node, portFree func(scheduler.HostPort) bool) (bool, error) {
	if j.isNeverPlaced() {
		return true, nil // CheckSupported has printed the reason
	}
	if fits, err := j.CheckNodeConstraints(s, heading, node); err != nil || !fits {
		return false, err
	}
	_, err := scheduler.Place(j.Job, node, scheduler.Env{
		NewID:         uuid.NewString,
		PortFree:      portFree,
		PortListeners: hostport.Listeners,
		RandIntN:      rand.IntN,
		Now:           time.Now,
	})
	if err == nil {
		return true, nil
	}
	fmt.Fprintln(s.Err, heading)
	return false, jobspec.WriteDiagnostics(s.Err, j.newPlacementDiagnostics(err), j.File.SourceTexts)
}

// newPlacementDiagnostics returns a diagnostic for each group that does not fit on a node.
func (j *File) newPlacementDiagnostics(err error) hcl.Diagnostics {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	var diags hcl.Diagnostics
	for _, err := range errs {
		diag := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: err.Error()}
		if group := new(scheduler.GroupPlacementError); errors.As(err, &group) {
			if rng, ok := j.File.Range("group", group.Group); ok {
				diag.Subject = &rng
			}
		}
		diags = append(diags, diag)
	}
	return diags
}
