package jobcheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// CheckLocally checks a canonical job against plugins that this process starts and against this machine. It starts the
// job's hooks, and those of the job's drivers whose schema saved does not have. drivers are the names of the available
// drivers. CheckLocally prints the errors, and warnings about plugins. good is true if the job can run.
func CheckLocally(ctx context.Context, j *jobfile.File, plugins localplugins.Plugins, drivers []string, saved map[string]*hclspec.Spec, s *cli.Streams) (answer admission.Answer, good bool, err error) {
	flags := admission.Flags{Caller: admission.Validate}
	node := admission.Node{Drivers: drivers, Schemas: make(map[string]admission.ConfigSchema)}
	for name, schema := range saved {
		node.Schemas[name] = admission.ConfigSchema{Spec: schema}
	}
	wanted := slices.DeleteFunc(j.DriverNames(), func(name string) bool {
		_, isSaved := saved[name]
		return isSaved || !slices.Contains(drivers, name)
	})
	hooks := append(HookNames(j), plugins.HookNames()...)
	before := j.CheckAdmission(ctx, node, flags)
	if len(wanted)+len(hooks) == 0 && before.Rejected() {
		good, err = j.PrintAdmissionAnswer(s, "", &before)
		return before, good, err
	}
	asked := localplugins.RunWithAgent(ctx, plugins, slices.Concat([]string{}, wanted, hooks), func(a *agent.Agent) {
		readDriverSchemas(ctx, a, wanted, node.Schemas, s)
		for _, err := range a.CheckHookRules(ctx) {
			fmt.Fprintf(s.Err, "warning: hook block does not work: %v\n", err)
		}
		node.HookFaults, node.HookCheckErrors = a.CheckHookAttachments(ctx, j.Job)
		if !before.Rejected() {
			wait := a.WaitDriversReady
			if j.RequestsDevices() {
				wait = func(ctx context.Context) error { return localplugins.WaitPluginsLaunched(ctx, a) } // a device plugin may start slowly
			}
			if err = wait(ctx); err != nil {
				return
			}
			node.Features = nodeFeaturesOf(a)
		}
		answer = j.CheckAdmission(ctx, node, flags)
		if good, err = j.PrintAdmissionAnswer(s, j.HeadingForUnplacedGroups(), &answer); err != nil || answer.Rejected() || answer.IsNeverPlaced() {
			return
		}
		// All ports count as free, because an earlier version of the job can be running and use them.
		fits := false
		fits, err = CheckCapacity(j, s, a, func(scheduler.HostPort) bool { return true })
		good = good && fits
	})
	return answer, good, errors.Join(err, asked)
}

// NewAdmissionNode returns what admission checks of a canonical job must know about an agent in this process. It prints
// a warning for a driver that cannot be started.
func NewAdmissionNode(ctx context.Context, j *jobfile.File, a *agent.Agent, drivers []string, s *cli.Streams) admission.Node {
	node := admission.Node{Drivers: drivers, Schemas: make(map[string]admission.ConfigSchema), Features: nodeFeaturesOf(a)}
	node.HookFaults, node.HookCheckErrors = a.CheckHookAttachments(ctx, j.Job)
	wanted := slices.DeleteFunc(j.DriverNames(), func(name string) bool { return !slices.Contains(drivers, name) })
	readDriverSchemas(ctx, a, wanted, node.Schemas, s)
	return node
}

// readDriverSchemas adds the task config schemas of the wanted drivers to schemas, and prints a warning for each driver
// that cannot be started.
func readDriverSchemas(ctx context.Context, a *agent.Agent, wanted []string, schemas map[string]admission.ConfigSchema, s *cli.Streams) {
	for _, name := range wanted {
		spec, err := a.TaskConfigSchema(ctx, name)
		if err != nil {
			fmt.Fprintf(s.Err, "warning: config blocks for driver %q are not checked: %v\n", name, err)
		}
		schemas[name] = admission.ConfigSchema{Spec: spec, Err: err}
	}
}

// PrintHookErrors prints each distinct error of the hooks that could not be started, as a warning.
func PrintHookErrors(s *cli.Streams, hookErrs []error) {
	printed := make(map[string]bool)
	for _, err := range hookErrs {
		if text := err.Error(); !printed[text] {
			printed[text] = true
			fmt.Fprintf(s.Err, "warning: what the job says to a hook is not checked: %s\n", text)
		}
	}
}

// nodeFeaturesOf returns the properties of an agent's node by which the scheduler places allocations.
func nodeFeaturesOf(a *agent.Agent) *admission.NodeFeatures {
	f := &admission.NodeFeatures{
		NodeFacts: a.Node().TaskEnvNode().NodeFacts, HostVolumes: a.Node().HostVolumes(),
		NetworkModes: append([]string{}, a.Host().NetworkModes...), HostNetworks: make(map[string]admission.HostNetwork),
	}
	for name, n := range a.Host().HostNetworks {
		f.HostNetworks[name] = admission.HostNetwork{Address: n.IP}
	}
	return f
}

// CheckCapacity prints which groups of a job that passed admission do not fit on the machine of an agent, as if the
// agent ran no allocation. It returns true if the job fits.
func CheckCapacity(j *jobfile.File, s *cli.Streams, a *agent.Agent, portFree func(scheduler.HostPort) bool) (bool, error) {
	node := scheduler.PlacementNode{NodeFeatures: *nodeFeaturesOf(a), IP: a.Host().IP, Devices: devices.NodeResources(a.DeviceGroups())}
	return checkFitsEmptyNode(j, s, j.HeadingForUnplacedGroups(), node, portFree)
}

// checkFitsEmptyNode prints under a heading which groups of a job that passed admission do not fit on a node without
// allocations. It returns true if the job fits.
func checkFitsEmptyNode(j *jobfile.File, s *cli.Streams, heading string, node scheduler.PlacementNode, portFree func(scheduler.HostPort) bool) (bool, error) {
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
	return false, jobspec.WriteDiagnostics(s.Err, newPlacementDiagnostics(j, err), j.Parsed.SourceTexts)
}

// newPlacementDiagnostics returns a diagnostic for each group that err, the error of scheduler.Place, names.
func newPlacementDiagnostics(j *jobfile.File, err error) hcl.Diagnostics {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	var diags hcl.Diagnostics
	for _, err := range errs {
		diag := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: err.Error()}
		if group := new(scheduler.GroupPlacementError); errors.As(err, &group) {
			if rng, ok := j.Parsed.Range("group", group.Group); ok {
				diag.Subject = &rng
			}
		}
		diags = append(diags, diag)
	}
	return diags
}

// HookNames returns the names of the hooks that the job attaches, and of the builtin hooks that its blocks need.
func HookNames(j *jobfile.File) []string {
	var hookNames []string
	for _, at := range model.HookAttachments(j.Job) {
		hookNames = append(hookNames, at.Hook)
	}
	hookNames = append(hookNames, pluginhooks.BuiltinHooksOfJob(j.Job)...)
	slices.Sort(hookNames)
	return slices.Compact(hookNames)
}

// CheckWithAgent prints the errors of a canonical job for the drivers and the node of an agent, and the errors that the
// agent has found. It returns true if there are none and the job fits on the node.
func CheckWithAgent(ctx context.Context, j *jobfile.File, s *cli.Streams, a *jobfile.AgentValidation) (bool, error) {
	return j.CheckWithAgent(ctx, s, a, func(heading string, features admission.NodeFeatures) (bool, error) {
		return checkFitsEmptyNode(j, s, heading, scheduler.PlacementNode{NodeFeatures: features}, func(scheduler.HostPort) bool { return true })
	})
}
