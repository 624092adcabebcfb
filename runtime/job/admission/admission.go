package admission

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Node has the node facts that decide whether it can run a job. A nil field is unknown: Check then refuses nothing because of it.
type Node struct {
	Region      string           // empty means the region "global"
	Namespaces  []*api.Namespace // the namespaces besides the default one; nil means every valid name exists
	DriverNames []string         // the driver names
	// ConfigSchemaByDriver maps driver names to config block schemas. Check does not check other drivers' config blocks.
	ConfigSchemaByDriver map[string]DriverConfigSchema
	// CapabilitiesByDriver maps driver names to capabilities. Other drivers have unknown capabilities.
	CapabilitiesByDriver map[string]*driver.Capabilities
	// HookFaults are the job's attachments rejected by their hooks. HookCheckErrors are errors from hooks that could not check their
	// attachment.
	HookFaults      []HookAttachmentFault
	HookCheckErrors []error
	// VariableExists reports whether the job's namespace has a variable.
	VariableExists func(path string) bool
	Features       *NodeFeatures
	// HasCSIVolume reports whether a directory stands in for a CSI volume; nil means that Features has this, or that it is unknown.
	HasCSIVolume func(source string) bool
	// SchedulerConfig is the scheduler configuration; nil means the default.
	SchedulerConfig *api.SchedulerConfiguration
	JobLimits       model.JobLimits
}

func (n *Node) hasCSIVolume(source string) bool {
	if n.Features != nil {
		return n.Features.HasCSIVolume(source)
	}
	return n.HasCSIVolume != nil && n.HasCSIVolume(source)
}

// DriverConfigSchema is the schema of a driver's config block.
type DriverConfigSchema struct {
	Spec *hclspec.Spec // nil: the driver accepts every block
	Err  error         // the reason why the schema is unknown
}

// HookAttachmentFault is a hook's attachment to a job that cannot be accepted: Err is the reason.
type HookAttachmentFault struct {
	Attachment    model.HookAttachment
	IsHookMissing bool // the hook does not exist
	Err           error
}

// CheckOptions state who calls Check, and how the job will run.
type CheckOptions struct {
	Caller CallerKind
	// RunsPeriodicJobNow means a periodic job is run once, now.
	RunsPeriodicJobNow bool
	// HasTemplateVariables means a foreground run has variables for templates.
	HasTemplateVariables bool
}

// CheckResult is what Check returns.
type CheckResult struct {
	// ValidationErr is the error for an invalid job, in the form of model.Validate, or nil.
	ValidationErr error
	// IsMalformedRequest means Nomad's HTTP API reports ValidationErr before a server validates the job.
	IsMalformedRequest bool
	// Refusals are the parts of the job that cannot run, in job order, with their effects for the caller. They include requirements
	// the node does not meet only if the job is valid and has no other refusals with scope Everywhere or InFiles.
	Refusals []Refusal
	// ConfigFaults are the errors in tasks' config blocks. AllConfigsChecked is false if a block was not checked because its
	// driver's schema is unknown.
	ConfigFaults      []ConfigFault
	AllConfigsChecked bool
	// Warnings are the warnings about the job, in the form of Nomad's API. They do not include the ConfigFaults.
	Warnings []string
	// IgnoredParts are the parts of the job that a foreground run ignores. It is set for the caller Foreground only.
	IgnoredParts []*model.JobFault
}

// RefusalsWithEffect returns the refusals with an effect.
func (a *CheckResult) RefusalsWithEffect(e RefusalEffect) []Refusal {
	return slices.DeleteFunc(slices.Clone(a.Refusals), func(r Refusal) bool { return r.Effect != e })
}

// IsRejected reports whether the caller must reject the job, because of a fault or a refusal. ConfigFaults do not count, because
// another driver version can be installed before the job runs.
func (a *CheckResult) IsRejected() bool {
	return a.ValidationErr != nil || len(a.RefusalsWithEffect(Rejects)) > 0
}

// Check returns whether a canonical job can run on a node. It does not modify its arguments and may be called
// concurrently. If ctx ends, it leaves config blocks unchecked.
func Check(ctx context.Context, job *api.Job, node Node, flags CheckOptions) CheckResult {
	var a CheckResult
	a.ValidationErr, a.IsMalformedRequest = validateJob(job, node)
	a.Refusals = unsupportedParts(job, node, flags)
	a.Refusals = append(a.Refusals, refuseHookFaults(node.HookFaults)...)
	a.Refusals = append(a.Refusals, RefuseUnknownPortLabels(job)...)
	a.Refusals = append(a.Refusals, partsRefusedByDrivers(job, node.CapabilitiesByDriver)...)
	if node.Features != nil && a.ValidationErr == nil && !slices.ContainsFunc(a.Refusals, excludesPlacement) {
		a.Refusals = append(a.Refusals, node.Features.UnmetRequirements(job)...)
	}
	for i := range a.Refusals {
		a.Refusals[i].Effect = a.Refusals[i].Kind.EffectFor(flags.Caller)
	}
	a.ConfigFaults, a.AllConfigsChecked = CheckConfigs(ctx, job, node.ConfigSchemaByDriver)
	config := node.SchedulerConfig
	if config == nil {
		config = model.NewDefaultSchedulerConfig()
	}
	a.Warnings = model.Warnings(job, config)
	if node.VariableExists != nil {
		for _, f := range model.MissingVariableFaults(job, node.VariableExists) {
			a.Warnings = append(a.Warnings, f.Text)
		}
	}
	for _, f := range model.CSIVolumeFaults(job, node.hasCSIVolume) {
		a.Warnings = append(a.Warnings, f.Text)
	}
	for _, err := range node.HookCheckErrors {
		a.Warnings = append(a.Warnings, fmt.Sprintf("What the job says to a hook was not checked: %v.", err))
	}
	if flags.Caller == Foreground {
		a.IgnoredParts = model.ForegroundRunWarnings(job, flags.HasTemplateVariables)
	}
	return a
}

// ValidationError returns only Check's field ValidationErr.
func ValidationError(job *api.Job, node Node) error {
	fault, _ := validateJob(job, node)
	return fault
}

// excludesPlacement reports whether a refusal means an agent never places the job.
func excludesPlacement(r Refusal) bool {
	return r.Kind.Scope == Everywhere || r.Kind.Scope == InFiles
}

// validateJob returns Check's fields ValidationErr and IsMalformedRequest.
func validateJob(job *api.Job, node Node) (fault error, malformedRequest bool) {
	if *job.Type == api.JobTypeSystem {
		for _, g := range job.TaskGroups {
			if g.Scaling != nil {
				return &model.JobFault{Path: []string{"group", *g.Name, "scaling"}, Text: "Task groups with job type system do not support scaling blocks"}, true
			}
		}
	}
	namespaces := node.Namespaces
	if namespaces == nil && model.ValidateNamespaceName(*job.Namespace) == nil {
		namespaces = []*api.Namespace{{Name: *job.Namespace}}
	}
	return model.Validate(job, node.JobLimits, namespaces...), false
}

// ConfigFault is an error in a task's config block.
type ConfigFault struct {
	Group, Task, Driver string
	Text                string // composed by package block
}

// CheckConfigs returns only Check's fields ConfigFaults and AllConfigsChecked, for a job that need not be canonical.
func CheckConfigs(ctx context.Context, job *api.Job, schemas map[string]DriverConfigSchema) (faults []ConfigFault, allChecked bool) {
	allChecked = true
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			schema, known := schemas[t.Driver]
			switch {
			case ctx.Err() != nil:
				return nil, false
			case !known || schema.Err != nil:
				allChecked = false
			case schema.Spec != nil:
				for _, text := range block.Messages(block.Check(ctx, schema.Spec, t.Config)) {
					faults = append(faults, ConfigFault{pointer.Value(g.Name), t.Name, t.Driver, text})
				}
			}
		}
	}
	return faults, allChecked && ctx.Err() == nil
}

// DriverNames returns the sorted driver names in the job's tasks.
func DriverNames(job *api.Job) []string {
	var names []string
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			names = append(names, t.Driver)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
