package jobcheck

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/localplugins"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/hostport"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/agent"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/pluginhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/resources/devices"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// CheckWithLocalPlugins checks a canonical job against plugins that this process starts and against this machine. It
// starts the job's hooks, and each driver of the job unless savedSchemaByDriver has its schema. It prints the errors, and
// warnings about plugins.
func CheckWithLocalPlugins(ctx context.Context, j *jobfile.File, plugins localplugins.PluginConfig, availableDrivers []string, savedSchemaByDriver map[string]*hclspec.Spec, s *cli.Streams) (answer admission.CheckResult, canRun bool, err error) {
	flags := admission.CheckOptions{Caller: admission.Validate}
	node := admission.Node{DriverNames: availableDrivers, ConfigSchemaByDriver: make(map[string]admission.DriverConfigSchema), CapabilitiesByDriver: make(map[string]*driver.Capabilities)}
	for name, schema := range savedSchemaByDriver {
		node.ConfigSchemaByDriver[name] = admission.DriverConfigSchema{Spec: schema}
	}
	wanted := slices.DeleteFunc(j.DriverNames(), func(name string) bool {
		_, isSaved := savedSchemaByDriver[name]
		return isSaved || !slices.Contains(availableDrivers, name)
	})
	hooks := append(HookNamesNeededByJob(j), plugins.HookBlockNames()...)
	before := j.CanonicalizeAndCheckAdmission(ctx, node, flags)
	if len(wanted)+len(hooks) == 0 && before.IsRejected() {
		canRun, err = j.PrintAdmissionAnswer(s, "", &before)
		return before, canRun, err
	}
	asked := localplugins.RunWithTemporaryAgent(ctx, plugins, slices.Concat([]string{}, wanted, hooks), func(a *agent.Agent) {
		addDriverDescriptions(ctx, a, wanted, &node, s)
		for _, err := range a.Plugins().CheckHookRules(ctx) {
			fmt.Fprintf(s.Err, "warning: hook block does not work: %v\n", err)
		}
		node.HookFaults, node.HookCheckErrors = a.Plugins().CheckHookAttachments(ctx, j.Job)
		wait := a.Supervisor().WaitBrieflyForFirstReports
		if j.RequestsDevices() {
			wait = func(ctx context.Context) error { return localplugins.WaitPluginsLaunchedOrFailed(ctx, a) } // a device plugin may start slowly
		}
		if err = wait(ctx); err != nil {
			return
		}
		if err = j.WarnUnusableDrivers(s, "this machine", driversOf(a, wanted)); err != nil {
			return
		}
		if !before.IsRejected() {
			node.Features = nodeFeaturesOf(a)
		}
		answer = j.CanonicalizeAndCheckAdmission(ctx, node, flags)
		if canRun, err = j.PrintAdmissionAnswer(s, j.HeadingForUnplacedGroups(), &answer); err != nil || answer.IsRejected() {
			return
		}
		// All ports count as free, because an earlier version of the job can be running and use them.
		fits := false
		fits, err = CheckFitsEmptyAgentNode(j, s, a, func(scheduler.HostPort) bool { return true })
		canRun = canRun && fits
	})
	if err := errors.Join(err, asked); err != nil || answer.ValidationErr != nil {
		return answer, canRun, err
	}
	sources := EnvSources{CapabilitiesByDriver: node.CapabilitiesByDriver, HasOperatorHooks: len(plugins.HookBlockNames()) > 0}
	if savedSchemaByDriver == nil { // saved schemas mean that the job runs on another machine
		sources.InheritedHostEnv = taskenv.FilterHostEnv(os.Environ(), plugins.Config.EnvDenylist, plugins.Config.EnvAllowlist)
	}
	return answer, canRun, WarnUnsetReferences(j, s, sources)
}

// driversOf returns the named drivers of an agent in the form of its node.
func driversOf(a *agent.Agent, names []string) map[string]*api.DriverInfo {
	drivers := make(map[string]*api.DriverInfo)
	for _, infos := range []map[string]supervisor.DriverInfo{a.Supervisor().DriverInfoByName(), a.Supervisor().NotStartedDriverInfoByName()} {
		for _, name := range names {
			info, ok := infos[name]
			if !ok {
				continue
			}
			drivers[name] = &api.DriverInfo{Detected: info.Detected, Healthy: info.Healthy, HealthDescription: info.Description}
		}
	}
	return drivers
}

// NewAdmissionNode returns what admission checks of a canonical job must know about an agent in this process. It prints
// a warning for a driver that cannot be started.
func NewAdmissionNode(ctx context.Context, j *jobfile.File, a *agent.Agent, availableDrivers []string, s *cli.Streams) admission.Node {
	node := admission.Node{DriverNames: availableDrivers, ConfigSchemaByDriver: make(map[string]admission.DriverConfigSchema), CapabilitiesByDriver: make(map[string]*driver.Capabilities), Features: nodeFeaturesOf(a)}
	node.HookFaults, node.HookCheckErrors = a.Plugins().CheckHookAttachments(ctx, j.Job)
	wanted := slices.DeleteFunc(j.DriverNames(), func(name string) bool { return !slices.Contains(availableDrivers, name) })
	addDriverDescriptions(ctx, a, wanted, &node, s)
	return node
}

// addDriverDescriptions adds the task config schemas and the capabilities of the named drivers to the facts about the node, and
// prints a warning for each driver that cannot be started.
func addDriverDescriptions(ctx context.Context, a *agent.Agent, driverNames []string, node *admission.Node, s *cli.Streams) {
	for _, name := range driverNames {
		spec, err := a.Plugins().TaskConfigSchema(ctx, name)
		node.ConfigSchemaByDriver[name] = admission.DriverConfigSchema{Spec: spec, Err: err}
		if err == nil {
			node.CapabilitiesByDriver[name], err = a.Plugins().DriverCapabilities(ctx, name)
		}
		if err != nil {
			fmt.Fprintf(s.Err, "warning: config blocks for driver %q are not checked: %v\n", name, err)
		}
	}
}

// PrintDistinctHookWarnings prints each distinct error of the hooks that could not be started, as a warning.
func PrintDistinctHookWarnings(s *cli.Streams, hookErrs []error) {
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

// CheckFitsEmptyAgentNode prints which groups of a job that passed admission do not fit on the machine of an agent, as
// if the agent ran no allocation. It returns true if the job fits.
func CheckFitsEmptyAgentNode(j *jobfile.File, s *cli.Streams, a *agent.Agent, isPortFree func(scheduler.HostPort) bool) (fits bool, err error) {
	node := scheduler.PlacementNode{NodeFeatures: *nodeFeaturesOf(a), IP: a.Host().IP, Devices: devices.ToAPINodeDevices(a.Supervisor().DeviceGroups())}
	return checkFitsEmptyNode(j, s, j.HeadingForUnplacedGroups(), node, isPortFree)
}

// checkFitsEmptyNode prints under a heading which groups of a job that passed admission do not fit on a node without
// allocations. It returns true if the job fits.
func checkFitsEmptyNode(j *jobfile.File, s *cli.Streams, heading string, node scheduler.PlacementNode, isPortFree func(scheduler.HostPort) bool) (fits bool, err error) {
	_, placementErr := scheduler.PlaceOnEmptyNode(j.Job, node, scheduler.Env{
		NewID:                 uuid.NewString,
		IsPortFree:            isPortFree,
		DescribePortListeners: hostport.Listeners,
		RandIntN:              rand.IntN,
		Now:                   time.Now,
	})
	if placementErr == nil {
		return true, nil
	}
	fmt.Fprintln(s.Err, heading)
	return false, jobspec.WriteDiagnostics(s.Err, newPlacementDiagnostics(j, placementErr), j.Parsed.SourceTextByFileName)
}

// newPlacementDiagnostics returns a diagnostic for each group that err, the error of scheduler.PlaceOnEmptyNode, names.
func newPlacementDiagnostics(j *jobfile.File, err error) hcl.Diagnostics {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	var diags hcl.Diagnostics
	for _, err := range errs {
		diag := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: err.Error()}
		if group := new(scheduler.GroupPlacementError); errors.As(err, &group) {
			if rng, ok := j.Parsed.InnermostRange("group", group.Group); ok {
				diag.Subject = &rng
			}
		}
		diags = append(diags, diag)
	}
	return diags
}

// HookNamesNeededByJob returns the names of the hooks that the job attaches, and of the builtin hooks that its blocks
// need.
func HookNamesNeededByJob(j *jobfile.File) []string {
	var hookNames []string
	for _, at := range model.HookAttachments(j.Job) {
		hookNames = append(hookNames, at.Hook)
	}
	hookNames = append(hookNames, pluginhooks.BuiltinHooksUsedByBlocks(j.Job)...)
	slices.Sort(hookNames)
	return slices.Compact(hookNames)
}

// PrintValidationErrorsAndFit prints the errors of a canonical job for the drivers and the node of an agent, and the
// errors that the agent has found. It returns true if there are none and the job fits on the node.
func PrintValidationErrorsAndFit(ctx context.Context, j *jobfile.File, s *cli.Streams, a *jobfile.AgentValidation) (noErrorsAndFits bool, err error) {
	return j.PrintValidationErrors(ctx, s, a, func(heading string, features admission.NodeFeatures) (bool, error) {
		return checkFitsEmptyNode(j, s, heading, scheduler.PlacementNode{NodeFeatures: features}, func(scheduler.HostPort) bool { return true })
	})
}
