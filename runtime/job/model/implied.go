package model

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// addImpliedConstraints adds the constraints the group's features imply. They are part of the stored job: inspect, plan and a new
// registration must agree on them.
func addImpliedConstraints(g *api.TaskGroup) {
	written := slices.Clone(g.Constraints)
	has := func(same func(*api.Constraint) bool) bool { return slices.ContainsFunc(written, same) }
	unlessEqual := func(c *api.Constraint) {
		if !has(func(w *api.Constraint) bool { return *w == *c }) {
			g.Constraints = append(g.Constraints, c)
		}
	}
	unlessAttribute := func(c *api.Constraint) {
		if !has(func(w *api.Constraint) bool { return w.LTarget == c.LTarget }) {
			g.Constraints = append(g.Constraints, c)
		}
	}

	if signals := signalsSentToTasks(g); len(signals) > 0 {
		unlessEqual(api.NewConstraint("${attr.os.signals}", api.ConstraintSetContains, strings.Join(signals, ",")))
	}
	use := serviceUsageOf(g)
	if use.usesNomadProvider {
		unlessEqual(api.NewConstraint("${attr.nomad.service_discovery}", "=", "true"))
	}
	if use.usesNomadChecks {
		unlessEqual(api.NewConstraint("${attr.nomad.version}", api.ConstraintSemver, ">= 1.4.0"))
	}
	if use.groupUsesConsul {
		unlessAttribute(impliedConsulConstraint())
	}
	for _, t := range use.tasksUsingConsul {
		if !slices.ContainsFunc(t.Constraints, func(c *api.Constraint) bool { return c.LTarget == impliedConsulConstraint().LTarget }) {
			t.Constraints = append(t.Constraints, impliedConsulConstraint())
		}
	}
	if len(g.Networks) > 0 && g.Networks[0].Mode == "bridge" {
		for _, c := range impliedBridgeConstraints() {
			unlessAttribute(c)
		}
	}
	for _, provider := range secretProvidersOf(g) {
		unlessAttribute(api.NewConstraint("${attr.plugins.secrets."+provider+".version}", api.ConstraintAttributeIsSet, ""))
	}
	if slices.ContainsFunc(g.Tasks, func(t *api.Task) bool { return len(t.Identities) > 0 }) {
		unlessAttribute(api.NewConstraint("${attr.nomad.version}", api.ConstraintSemver, ">= 1.7.0-a"))
	}
	if slices.ContainsFunc(g.Tasks, func(t *api.Task) bool { return t.Vault != nil }) {
		unlessAttribute(api.NewConstraint("${attr.vault.version}", api.ConstraintSemver, ">= 0.6.1"))
	}
}

// impliedBridgeConstraints are the constraints the network mode "bridge" implies.
func impliedBridgeConstraints() (all []*api.Constraint) {
	for _, plugin := range []string{"bridge", "firewall", "host-local", "loopback", "portmap"} {
		all = append(all, api.NewConstraint("${attr.plugins.cni.version."+plugin+"}", api.ConstraintSemver, ">= 0.4.0"))
	}
	return all
}

// IsImpliedBridgeConstraint reports whether the network mode "bridge" implies the constraint. Every node with that mode satisfies
// it: nomad-lite's bridge needs no CNI plugins.
func IsImpliedBridgeConstraint(c *api.Constraint) bool {
	return slices.ContainsFunc(impliedBridgeConstraints(), func(implied *api.Constraint) bool { return *implied == *c })
}

// IsImpliedConsulConstraint reports whether a service with provider consul implies the constraint. A node satisfies it if its
// catalog has such services.
func IsImpliedConsulConstraint(c *api.Constraint) bool { return *c == *impliedConsulConstraint() }

func impliedConsulConstraint() *api.Constraint {
	return api.NewConstraint("${attr.consul.version}", api.ConstraintSemver, ">= 1.8.0")
}

// signalsSentToTasks returns the signals that may be sent to a group's tasks, sorted.
func signalsSentToTasks(g *api.TaskGroup) []string {
	var usedSignals []string
	for _, t := range g.Tasks {
		if t.KillSignal != "" {
			usedSignals = append(usedSignals, t.KillSignal)
		}
		for _, tmpl := range t.Templates {
			if pointer.Value(tmpl.ChangeMode) == "signal" {
				usedSignals = append(usedSignals, pointer.Value(tmpl.ChangeSignal))
			}
		}
		if t.Vault != nil && pointer.Value(t.Vault.ChangeMode) == "signal" {
			usedSignals = append(usedSignals, pointer.Value(t.Vault.ChangeSignal))
		}
	}
	slices.Sort(usedSignals)
	return slices.Compact(usedSignals)
}

type serviceUsage struct {
	usesNomadProvider, usesNomadChecks, groupUsesConsul bool
	tasksUsingConsul                                    []*api.Task
}

func serviceUsageOf(g *api.TaskGroup) serviceUsage {
	var use serviceUsage
	note := func(services []*api.Service) (consul bool) {
		for _, s := range services {
			switch s.Provider {
			case ProviderNomad:
				use.usesNomadProvider = true
				use.usesNomadChecks = use.usesNomadChecks || len(s.Checks) > 0
			case api.ServiceProviderConsul:
				consul = true
			}
		}
		return consul
	}
	use.groupUsesConsul = note(g.Services)
	for _, t := range g.Tasks {
		if note(t.Services) {
			use.tasksUsingConsul = append(use.tasksUsingConsul, t)
		}
	}
	return use
}

func secretProvidersOf(g *api.TaskGroup) []string {
	var usedProviders []string
	for _, t := range g.Tasks {
		for _, s := range t.Secrets {
			usedProviders = append(usedProviders, s.Provider)
		}
	}
	slices.Sort(usedProviders)
	return slices.Compact(usedProviders)
}
