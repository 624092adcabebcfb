package jobfile

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/pluginstatus"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// AgentValidation is an agent's validation of a job, together with the node that the job would run on.
type AgentValidation struct {
	response *api.JobValidateResponse
	// serversDecide means that the agent is a node of a cluster: the limits of this program and its machine are not checked.
	serversDecide bool
	node          *api.Node // nil if serversDecide, or if the agent is part of a cluster of several nodes
	// hasOperatorHooks means that the agent's configuration has hooks for tasks.
	hasOperatorHooks bool
}

// ValidateWithAgent lets an agent validate the job. An agent of another region counts as one that rejects the job.
func (fi *File) ValidateWithAgent(ctx context.Context, c *api.Client) (*AgentValidation, error) {
	validation, _, err := c.Jobs().Validate(fi.Job, apiclient.WriteOptions(ctx, pointer.Value(fi.Job.Namespace)))
	if isRegionError(err) {
		return &AgentValidation{response: &api.JobValidateResponse{ValidationErrors: []string{"region: " + fi.wrongRegionReason()}}}, nil
	}
	if err != nil {
		return nil, err
	}
	a := &AgentValidation{response: validation, serversDecide: apiclient.ServersDecide(c)}
	if !a.serversDecide {
		a.node = apiclient.FindOnlyNode(ctx, c)
	}
	for _, h := range pluginstatus.ReadReportOrEmpty(c).Hooks {
		a.hasOperatorHooks = a.hasOperatorHooks || h.Rule != nil
	}
	return a, nil
}

// HasOperatorHooks reports whether the agent's configuration has hooks for tasks. They can change the tasks of any job.
func (a *AgentValidation) HasOperatorHooks() bool { return a.hasOperatorHooks }

// CheckDriverConfigs lets an agent compare the job's config blocks with its drivers' schemas. If there are errors, it canonicalizes
// the job and prints them, and the agent's other errors, with their positions. It returns true if the config blocks have no errors. A
// request that fails is no error, because the agent then rejects the next request, with the job, too.
func (fi *File) CheckDriverConfigs(ctx context.Context, c *api.Client, s *cli.Streams) (noErrors bool, err error) {
	validation, _, err := c.Jobs().Validate(fi.Job, apiclient.WriteOptions(ctx, pointer.Value(fi.Job.Namespace)))
	if err != nil {
		return true, nil
	}
	if !slices.ContainsFunc(validation.ValidationErrors, agentConfigErrorPattern().MatchString) {
		return true, nil
	}
	model.Canonicalize(fi.Job) // the job is not sent
	configErrors, otherErrors := fi.newDiagnosticsOfAgentErrors(validation)
	return false, errors.Join(fi.printDriverConfigErrors(s, configErrors), fi.printAgentErrors(s, otherErrors))
}

// printAgentErrors prints the errors with which an agent rejects the job, if there are any.
func (fi *File) printAgentErrors(s *cli.Streams, diags hcl.Diagnostics) error {
	if len(diags) == 0 {
		return nil
	}
	fmt.Fprintln(s.Err, "The agent rejects this job:")
	return jobspec.WriteDiagnostics(s.Err, diags, fi.Parsed.SourceTextByFileName)
}

// ServersDecide reports whether servers of a cluster place the job, possibly on another node than that of the agent.
func (a *AgentValidation) ServersDecide() bool { return a.serversDecide }

// isRegionError reports whether an agent has rejected a request because of its region.
func isRegionError(err error) bool {
	return err != nil && strings.Contains(err.Error(), "No path to region")
}

// wrongRegionReason returns the text with which an agent of another region rejects the job.
func (fi *File) wrongRegionReason() string {
	return fmt.Sprintf("No path to region %q: the agent is of another region, correct or remove the attribute", pointer.Value(fi.Job.Region))
}

// Warnings returns the agent's warnings about the job.
func (a *AgentValidation) Warnings() string { return a.response.Warnings }

// DetectedOrExplainedDriverNames returns the names of the drivers of the agent's node, or nil if the node is unknown.
// It includes a driver that is not detected if the job uses the driver and the driver reports the reason, because
// PrintValidationErrors prints that reason.
func (a *AgentValidation) DetectedOrExplainedDriverNames(j *File) []string {
	if a.node == nil {
		return nil
	}
	names := []string{}
	for name, driver := range a.node.Drivers {
		if driver != nil && (driver.Detected || driver.HealthDescription != "" && slices.Contains(j.DriverNames(), name)) {
			names = append(names, name)
		}
	}
	return names
}

// PrintValidationErrors checks a canonical job against the agent's drivers and node, and prints the errors, and those that the agent
// has found, with their positions in the file. In a cluster it prints only the servers' errors.
//
// If there are no errors, it calls checkFits, which prints under a heading which groups do not fit on the agent's node. It returns
// true if there are no errors and the job fits.
func (fi *File) PrintValidationErrors(ctx context.Context, s *cli.Streams, a *AgentValidation, checkFits func(heading string, features admission.NodeFeatures) (fits bool, err error)) (noErrorsAndFits bool, err error) {
	facts := admission.Node{DriverNames: a.DetectedOrExplainedDriverNames(fi)}
	heading := ""
	var features admission.NodeFeatures
	if a.node != nil {
		features = NodeFeaturesOf(a.node)
		facts.Features = &features
		heading = fmt.Sprintf("job %q does not fit on node %q:", pointer.Value(fi.Job.ID), a.node.Name)
	}
	var local admission.CheckResult
	good := true
	if !a.serversDecide {
		local = fi.CanonicalizeAndCheckAdmission(ctx, facts, admission.CheckOptions{Caller: admission.Validate})
		if good, err = fi.PrintAdmissionAnswer(s, heading, &local); err != nil {
			return false, err
		}
	}
	if a.node != nil {
		if err := fi.WarnUnusableDrivers(s, fmt.Sprintf("node %q", a.node.Name), a.node.Drivers); err != nil {
			return false, err
		}
	}
	configErrors, otherErrors := fi.newDiagnosticsOfAgentErrors(a.response)
	if err := fi.printDriverConfigErrors(s, configErrors); err != nil || !good { // the errors of an invalid job have been printed
		return false, err
	}
	if len(otherErrors) > 0 {
		return false, fi.printAgentErrors(s, otherErrors)
	}
	if a.node == nil {
		return len(configErrors) == 0, nil
	}
	good, err = checkFits(heading, features)
	return len(configErrors) == 0 && good, err
}

// NodeFeaturesOf returns the properties of a node by which the scheduler places allocations.
func NodeFeaturesOf(n *api.Node) admission.NodeFeatures {
	return admission.NodeFeatures{NodeFacts: model.NodeFactsOf(n), HostVolumes: n.HostVolumes}
}

// WarnUnusableDrivers prints a warning for each of the job's tasks whose driver a node has but cannot use at present, with
// the driver's health description. nodeText names the node.
func (fi *File) WarnUnusableDrivers(s *cli.Streams, nodeText string, driverByName map[string]*api.DriverInfo) error {
	var diags hcl.Diagnostics
	apiclient.ForEachTask(fi.Job, func(group *api.TaskGroup, task *api.Task) {
		if d := driverByName[task.Driver]; d != nil && !d.Healthy && (d.Detected || d.HealthDescription != "") {
			text := fmt.Sprintf("driver %q cannot be used on %s: %s", task.Driver, nodeText, d.HealthDescription)
			diags = append(diags, fi.NewWarningDiagnostic(append(TaskBlockPath(group, task), "driver"), text))
		}
	})
	return jobspec.WriteDiagnostics(s.Err, diags, fi.Parsed.SourceTextByFileName)
}

var agentConfigErrorPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^Task group (.+), task (.+): driver \S+: config: (.*)$`)
})

// newDiagnosticsOfAgentErrors converts the errors of an agent to diagnostics, and separates the errors in config blocks
// from the others.
func (fi *File) newDiagnosticsOfAgentErrors(v *api.JobValidateResponse) (configErrors, otherErrors hcl.Diagnostics) {
	for _, text := range v.ValidationErrors {
		if part := agentConfigErrorPattern().FindStringSubmatch(text); part != nil {
			configErrors = append(configErrors, fi.newConfigDiagnostic(part[1], part[2], part[3]))
			continue
		}
		for line := range strings.Lines(apiclient.StripErrorListHeads(text)) {
			line = strings.TrimLeft(strings.TrimSpace(line), "* ")
			path, reason, _ := strings.Cut(line, ": ")
			switch {
			case line == "" || line == refusalHeading:
			case looksLikeJobPath(path):
				otherErrors = append(otherErrors, fi.NewErrorDiagnostic(strings.Split(path, "."), reason))
			default:
				otherErrors = append(otherErrors, fi.newValidationDiagnostic(line))
			}
		}
	}
	return configErrors, otherErrors
}

// looksLikeJobPath reports whether text, which precedes the reason in an agent's error, is the path of an attribute or
// block of the job.
func looksLikeJobPath(text string) bool {
	return text == "region" || strings.HasPrefix(text, "group.") || strings.HasPrefix(text, "meta.")
}

// newValidationDiagnostic returns a diagnostic for an error text of Nomad's validation. The diagnostic has a position
// in the file if this program's own validation returns the same text.
func (fi *File) newValidationDiagnostic(text string) *hcl.Diagnostic {
	for _, fault := range fi.faultsFoundByAnyAgent() {
		if fault.Text == text {
			return fi.NewErrorDiagnostic(fault.Path, text+fault.Hint())
		}
	}
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: text}
}
