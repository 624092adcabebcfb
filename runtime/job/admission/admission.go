package admission

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Node has the facts about a node that decide whether it can run a job. A nil field means that the fact is unknown: Check
// then refuses nothing because of it.
type Node struct {
	Region      string   // empty means the region "global"
	Namespaces  []string // the namespaces besides the default one; nil means that every valid name exists
	DriverNames []string // the names of the drivers
	// ConfigSchemaByDriver maps driver name to the schema of its config block. Check does not check the config blocks of
	// other drivers.
	ConfigSchemaByDriver map[string]DriverConfigSchema
	// CapabilitiesByDriver maps driver name to the capabilities of the driver. Other drivers have unknown capabilities.
	CapabilitiesByDriver map[string]*driver.Capabilities
	// HookFaults are the attachments of the job that their hooks reject. HookCheckErrors are the errors of hooks that could
	// not check their attachment.
	HookFaults      []HookAttachmentFault
	HookCheckErrors []error
	// VariableExists reports whether the namespace of the job has a variable.
	VariableExists func(path string) bool
	Features       *NodeFeatures
	// SchedulerConfig is the scheduler configuration; nil means the default.
	SchedulerConfig *api.SchedulerConfiguration
}

// DriverConfigSchema is the schema of a driver's config block.
type DriverConfigSchema struct {
	Spec *hclspec.Spec // nil means that the driver accepts every block
	Err  error         // the reason why the schema is unknown
}

// HookAttachmentFault is the attachment of a hook to a job that cannot be accepted: Err is the reason.
type HookAttachmentFault struct {
	Attachment    model.HookAttachment
	IsHookMissing bool // the hook does not exist
	Err           error
}

// CheckOptions are the options of Check: who calls it, and how the job will run.
type CheckOptions struct {
	Caller CallerKind
	// RunsPeriodicJobNow means that a periodic job is run once, now.
	RunsPeriodicJobNow bool
	// HasTemplateVariables means that a run in the foreground has variables for templates.
	HasTemplateVariables bool
}

// CheckResult is the result of Check.
type CheckResult struct {
	// ValidationErr is the error of an invalid job, in the form of model.Validate, or nil.
	ValidationErr error
	// IsMalformedRequest means that Nomad's HTTP API reports ValidationErr before a server validates the job.
	IsMalformedRequest bool
	// Refusals are the parts of the job that cannot run, in the order of the job, with their effects for the caller. They
	// include requirements that the node does not meet only if the job is valid and has no other refusals of the scopes
	// Everywhere and InFiles.
	Refusals []Refusal
	// ConfigFaults are the errors in config blocks of tasks. AllConfigsChecked is false if a block was not checked because
	// the schema of its driver is unknown.
	ConfigFaults      []ConfigFault
	AllConfigsChecked bool
	// Warnings are the warnings about the job, in the form of Nomad's API. They do not include the ConfigFaults.
	Warnings []string
	// IgnoredParts are the parts of the job that a run in the foreground ignores. It is set for the caller Foreground only.
	IgnoredParts []*model.JobFault
}

// RefusalsWithEffect returns the refusals with an effect.
func (a *CheckResult) RefusalsWithEffect(e RefusalEffect) []Refusal {
	return slices.DeleteFunc(slices.Clone(a.Refusals), func(r Refusal) bool { return r.Effect != e })
}

// IsRejected reports whether the caller must reject the job, because of a fault or a refusal. ConfigFaults do not
// count, because another version of the driver can be installed before the job runs.
func (a *CheckResult) IsRejected() bool {
	return a.ValidationErr != nil || len(a.RefusalsWithEffect(Rejects)) > 0
}

// Check returns whether a canonical job can run on a node. It does not modify its arguments and may be called
// concurrently. If ctx ends, it leaves config blocks unchecked.
func Check(ctx context.Context, job *api.Job, node Node, flags CheckOptions) CheckResult {
	var a CheckResult
	a.ValidationErr, a.IsMalformedRequest = validateJob(job, node.Namespaces)
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
	a.ConfigFaults, a.AllConfigsChecked = checkConfigs(ctx, job, node.ConfigSchemaByDriver)
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
	for _, err := range node.HookCheckErrors {
		a.Warnings = append(a.Warnings, fmt.Sprintf("What the job says to a hook was not checked: %v.", err))
	}
	if flags.Caller == Foreground {
		a.IgnoredParts = model.ForegroundRunWarnings(job, flags.HasTemplateVariables)
	}
	return a
}

// ValidateInNamespaces returns only the field ValidationErr of the result of Check, for a node with these namespaces.
func ValidateInNamespaces(job *api.Job, namespaces []string) error {
	fault, _ := validateJob(job, namespaces)
	return fault
}

// excludesPlacement reports whether an agent never places a job because of a refusal.
func excludesPlacement(r Refusal) bool {
	return r.Kind.Scope == Everywhere || r.Kind.Scope == InFiles
}

// validateJob returns the fields ValidationErr and IsMalformedRequest of the result of Check.
func validateJob(job *api.Job, namespaces []string) (fault error, malformedRequest bool) {
	if *job.Type == api.JobTypeSystem {
		for _, g := range job.TaskGroups {
			if g.Scaling != nil {
				return &model.JobFault{Path: []string{"group", *g.Name, "scaling"}, Text: "Task groups with job type system do not support scaling blocks"}, true
			}
		}
	}
	if namespaces == nil && model.ValidateNamespaceName(*job.Namespace) == nil {
		namespaces = []string{*job.Namespace}
	}
	return model.Validate(job, namespaces...), false
}

// ConfigFault is an error in the config block of a task.
type ConfigFault struct {
	Group, Task, Driver string
	Text                string // of package block
}

// checkConfigs compares the config blocks of the tasks with the schemas of their drivers.
func checkConfigs(ctx context.Context, job *api.Job, schemas map[string]DriverConfigSchema) (faults []ConfigFault, allChecked bool) {
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
					faults = append(faults, ConfigFault{*g.Name, t.Name, t.Driver, text})
				}
			}
		}
	}
	return faults, allChecked && ctx.Err() == nil
}

// DriverNames returns the sorted names of the drivers of the job's tasks.
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
