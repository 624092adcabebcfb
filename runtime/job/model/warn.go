//lint:file-ignore SA1019 deprecated attributes are what this file warns of

package model

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// Warnings returns the warnings about a valid canonical job: Nomad's warnings, in Nomad's words, and attributes without effect on
// a single node with this scheduler configuration. A warning about a group or a task is nested under its name and has several
// lines.
func Warnings(job *api.Job, config *api.SchedulerConfiguration) []string {
	faults := nestedWarningFaults(job, config)
	warnings := make([]string, 0, len(faults))
	for _, f := range faults {
		if text := strings.TrimSpace(f.Error()); !slices.Contains(warnings, text) {
			warnings = append(warnings, text)
		}
	}
	return warnings
}

// LeafWarnings returns the single warnings of Warnings, each with its own block's path.
func LeafWarnings(job *api.Job, config *api.SchedulerConfiguration) []*JobFault {
	var all []*JobFault
	for _, f := range nestedWarningFaults(job, config) {
		all = append(all, f.leafFaults()...)
	}
	return all
}

func nestedWarningFaults(job *api.Job, config *api.SchedulerConfiguration) []*JobFault {
	if job == nil {
		return nil
	}
	r := newFaultReport()
	warnJob(r, job)
	warnConsulServices(r, job)
	for _, g := range job.TaskGroups {
		warnServicesWithoutShutdownDelay(r, g)
		at := r.nestedReport("group", pointer.Value(g.Name))
		warnGroup(at, g)
		for _, t := range g.Tasks {
			task := at.nestedReport("task", t.Name)
			warnTask(task, g, t)
			at.addNested(task, "Task %q has warnings:", t.Name)
			if t.Resources != nil && pointer.Value(t.Resources.MemoryMaxMB) != 0 && !config.MemoryOversubscriptionEnabled {
				r.atPath("group", pointer.Value(g.Name), "task", t.Name, "resources", "memory_max").addFault("Memory oversubscription is not enabled; Task \"%s.%s\" memory_max value will be ignored. Update the Scheduler Configuration to allow oversubscription.", pointer.Value(g.Name), t.Name)
			}
		}
		r.addNested(at, "Group %q has warnings:", pointer.Value(g.Name))
	}
	return *r.faults
}

// FormatWarnings formats warnings as one text, as Nomad's clients print them: empty if there
// are none.
func FormatWarnings(warnings []string) string {
	if len(warnings) == 0 {
		return ""
	}
	head := "1 warning:"
	if len(warnings) > 1 {
		head = fmt.Sprintf("%d warnings:", len(warnings))
	}
	return head + "\n\n* " + strings.Join(warnings, "\n* ")
}

// warnIgnoredFields warns of blocks and attributes that are set but have no effect.
func warnIgnoredFields(r *faultReport, why string, fields []ignoredField) {
	for _, i := range fields {
		if i.isSet {
			r.atPath(i.name, "0").addFault("%s %s", i.name, why) // "0" has no effect unless the block is repeatable
		}
	}
}

type ignoredField struct {
	name  string
	isSet bool
}

const noEffectOnSingleNode = "has no effect on a single node"

func warnJob(r *faultReport, job *api.Job) {
	if job.Periodic != nil && pointer.Value(job.Periodic.Spec) != "" {
		r.atPath("periodic", "cron").addFault("cron is deprecated and may be removed in a future release. Use crons instead")
	}
	promoting, updating := 0, 0
	for _, g := range job.TaskGroups {
		if g.Update != nil {
			updating++
			if pointer.Value(g.Update.AutoPromote) {
				promoting++
			}
		}
	}
	if promoting > 0 && promoting < updating {
		r.addFault("auto_promote must be true for all groups to enable automatic promotion")
	}
	warnIgnoredFields(r, noEffectOnSingleNode, []ignoredField{
		{"all_at_once", pointer.Value(job.AllAtOnce)},
		{"affinity", len(job.Affinities) > 0},
		{"spread", len(job.Spreads) > 0},
	})
}

// warnServicesWithoutShutdownDelay warns of services that stay registered while their tasks end.
func warnServicesWithoutShutdownDelay(r *faultReport, g *api.TaskGroup) {
	name := pointer.Value(g.Name)
	delayed := func(t *api.Task) bool { return t.ShutdownDelay > 0 }
	if len(g.Services) > 0 && pointer.Value(g.ShutdownDelay) == 0 {
		if !slices.ContainsFunc(g.Tasks, delayed) {
			r.atPath("group", name, "service", "0").addFault("group %q defines services, but neither the group nor any of its tasks have shutdown_delay set", name)
		}
		undelayed := make(map[string]bool)
		for _, t := range g.Tasks {
			undelayed[t.Name] = undelayed[t.Name] || !delayed(t)
		}
		for _, s := range g.Services {
			if undelayed[s.TaskName] {
				r.atPath("group", name, "task", s.TaskName).addFault("group %q references task %q in a service definition, but the task has no shutdown_delay set", name, s.TaskName)
			}
		}
	}
	for _, t := range g.Tasks {
		if len(t.Services) > 0 && !delayed(t) {
			r.atPath("group", name, "task", t.Name, "service", "0").addFault("task %q in group %q defines services, but has no shutdown_delay set", t.Name, name)
		}
	}
}

// warnConsulServices warns once about all services with provider consul, and about their fields that only Consul reads.
func warnConsulServices(r *faultReport, job *api.Job) {
	var names []string
	first := r
	add := func(at *faultReport, services []*api.Service) {
		for i, s := range services {
			if s.Provider != api.ServiceProviderConsul || s.Connect != nil {
				continue
			}
			service := at.atPath("service", positionText(i))
			if names = append(names, s.Name); len(names) == 1 {
				first = service
			}
			warnIgnoredFields(service, "of a service has no effect without Consul", []ignoredField{
				{"enable_tag_override", s.EnableTagOverride},
				{"weights", s.Weights != nil},
				{"tagged_addresses", len(s.TaggedAddresses) > 0},
				{"kind", s.Kind != ""},
				{"identity", s.Identity != nil},
			})
			for i, c := range s.Checks {
				warnIgnoredFields(service.atPath("check", positionText(i)), "of a check has no effect without Consul", []ignoredField{
					{"tls_server_name", c.TLSServerName != ""},
					{"failures_before_warning", c.FailuresBeforeWarning > 0},
				})
			}
		}
	}
	for _, g := range job.TaskGroups {
		group := r.atPath("group", pointer.Value(g.Name))
		add(group, g.Services)
		for _, t := range g.Tasks {
			add(group.atPath("task", t.Name), t.Services)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		first.addFault("There is no Consul here: the node registers %s of provider consul, which is the default, as with provider = \"nomad\"", quotedServices(slices.Compact(names)))
	}
}

// quotedServices returns service names for a sentence.
func quotedServices(names []string) string {
	const shown = 5
	text := "service"
	if len(names) > 1 {
		text = "services"
	}
	for i, name := range names {
		if i == shown {
			return fmt.Sprintf("%s and %d more", text, len(names)-shown)
		}
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %q", name)
	}
	return text
}

func warnGroup(r *faultReport, g *api.TaskGroup) {
	if g.Update != nil {
		if parallel, count := pointer.Value(g.Update.MaxParallel), pointer.Value(g.Count); count > 1 && parallel > count {
			r.atPath("update", "max_parallel").addFault("Update max parallel count is greater than task group count (%d > %d). A destructive change would result in the simultaneous replacement of all allocations.", parallel, count)
		}
	}
	warnCanaryBesideStaticPort(r, g)
	if len(g.Networks) > 0 {
		warnNetworks(r.atPath("network", "0"), g.Networks)
	}
	warnIgnoredFields(r, noEffectOnSingleNode, []ignoredField{
		{"affinity", len(g.Affinities) > 0},
		{"spread", len(g.Spreads) > 0},
		{"migrate", g.Migrate != nil && !reflect.DeepEqual(g.Migrate, api.DefaultMigrateStrategy())},
		{"disconnect", g.Disconnect != nil},
		{"consul", g.Consul != nil},
	})
	warnIgnoredFields(r, "is deprecated and ignored. Use the disconnect block instead", []ignoredField{
		{"max_client_disconnect", g.MaxClientDisconnect != nil},
		{"stop_after_client_disconnect", g.StopAfterClientDisconnect != nil},
		{"prevent_reschedule_on_lost", g.PreventRescheduleOnLost != nil},
	})
}

// warnCanaryBesideStaticPort warns of canaries that wait forever, because the allocation that they would replace has their port.
func warnCanaryBesideStaticPort(r *faultReport, g *api.TaskGroup) {
	if g.Update == nil || pointer.Value(g.Update.Canary) < 1 {
		return
	}
	networks := g.Networks[:min(1, len(g.Networks))]
	for _, t := range g.Tasks {
		if t.Resources != nil {
			networks = slices.Concat(networks, t.Resources.Networks)
		}
	}
	for _, n := range networks {
		for _, port := range n.ReservedPorts {
			if !port.IgnoreCollision {
				r.atPath("update", "canary").addFault("a canary cannot be placed beside the allocation that it replaces, because both need the static port %d (port %q) and a node has it once. Remove canary, or write the port without static", port.Value, port.Label)
				return
			}
		}
	}
}

func warnNetworks(r *faultReport, networks []*api.NetworkResource) {
	first := networks[0]
	if first.MBits != nil {
		r.atPath("mbits").addFault("mbits has been deprecated as of Nomad 0.12.0. Please remove mbits from the network block")
	}
	if len(networks) > 1 {
		r.addFault("only the first of %d network blocks is used", len(networks))
	}
	warnIgnoredFields(r, "of a network has no effect", []ignoredField{
		{"device", first.Device != ""},
		{"cidr", first.CIDR != ""},
		{"ip", first.IP != ""},
		{"cni", first.CNI != nil && !strings.HasPrefix(first.Mode, "cni/")},
	})
}

func warnTask(r *faultReport, g *api.TaskGroup, t *api.Task) {
	if t.Resources != nil {
		warnResources(r.atPath("resources"), t.Resources)
	}
	for i, tmpl := range t.Templates {
		if pointer.Value(tmpl.VaultGrace) != 0 {
			r.atPath("template", positionText(i), "vault_grace").addFault("Template[%d] VaultGrace has been deprecated as of Nomad 0.11 and ignored since Vault 0.5. Please remove VaultGrace / vault_grace from template block.", i)
		}
	}
	for _, id := range t.Identities {
		warnIdentity(r.atPath("identity", id.Name), id)
		if strings.HasPrefix(id.Name, "vault_") && t.Vault == nil {
			r.atPath("identity", id.Name).addFault("Task %s has an identity called %s but no vault block", t.Name, id.Name)
		}
	}
	warnLifecycle(r, t)
	if p := t.RestartPolicy; p != nil && g.RestartPolicy != nil && !reflect.DeepEqual(p, g.RestartPolicy) {
		// Nomad accepts any task restart policy, so an unsound one cannot be an error.
		policy := r.nestedReport("restart")
		checkRestartPolicy(policy, p)
		r.addNested(policy, "the restart policy of the task is not sound:")
	}
	if t.LogConfig != nil && t.LogConfig.Enabled != nil {
		r.atPath("logs", "enabled").addFault("enabled has no effect in a logs block. Use disabled instead")
	}
	if slices.ContainsFunc(t.VolumeMounts, IsEmptyMount) {
		r.atPath("volume_mount", "0").addFault("an empty volume_mount has no effect")
	}
	warnIgnoredFields(r, noEffectOnSingleNode, []ignoredField{
		{"affinity", len(t.Affinities) > 0},
		{"consul", t.Consul != nil},
		{"scaling", len(t.ScalingPolicies) > 0},
		{"kind", t.Kind != "" && !strings.HasPrefix(t.Kind, connectProxyPrefix)},
	})
}

func warnResources(r *faultReport, res *api.Resources) {
	if pointer.Value(res.IOPS) != 0 {
		r.atPath("iops").addFault("IOPS has been deprecated as of Nomad 0.9.0. Please remove IOPS from resource block.")
	}
	if len(res.Networks) > 0 {
		r.atPath("network", "0").addFault("task network resources have been deprecated as of Nomad 0.12.0. Please configure networking via group network block.")
	}
	if pointer.Value(res.DiskMB) != 0 {
		r.atPath("disk").addFault("disk of a task has no effect. Use the ephemeral_disk block of the group instead")
	}
}

func warnIdentity(r *faultReport, id *api.WorkloadIdentity) {
	if len(id.Audience) == 0 {
		r.addFault("Identity[%s] identities without an audience are insecure", id.Name)
	}
	if len(id.Audience) > 1 {
		r.addFault("Identity[%s] while multiple audiences is allowed, it is more secure to use 1 audience per identity", id.Name)
	}
	if id.TTL == 0 {
		r.addFault("Identity[%s] identities without an expiration are insecure", id.Name)
	}
	if id.Env && id.ChangeMode != "restart" {
		r.addFault(`Identity[%s] using env=true without change_mode="restart" may result in task not getting updated identity`, id.Name)
	}
}

// warnLifecycle warns about probable mistakes that Nomad accepts.
func warnLifecycle(r *faultReport, t *api.Task) {
	if t.Lifecycle == nil {
		return
	}
	r = r.atPath("lifecycle")
	switch hook := t.Lifecycle.Hook; {
	case hook == api.TaskLifecycleHookPoststop && t.Lifecycle.Sidecar:
		r.addFault("sidecar has no meaning for a poststop task")
	case hook == api.TaskLifecycleHookPrestart && t.Leader:
		r.addFault("a prestart task is the leader: when it has ended, the other tasks of the group are stopped, even before the main tasks have started")
	}
	if t.Lifecycle.Hook == api.TaskLifecycleHookPoststop && t.Leader {
		r.addFault("a poststop task cannot lead: it runs when the other tasks have ended")
	}
}

// readsNomadVariable reports whether a template is rendered only once a variable exists.
func readsNomadVariable(t *api.Template) bool {
	return t != nil && nomadVarPattern().MatchString(pointer.Value(t.EmbeddedTmpl))
}

var nomadVarPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{[^}]*\bnomadVar\b`) })

// ForegroundRunWarnings returns a canonical job's features that only an agent provides and a foreground run ignores, such as
// updates and scaling. hasNomadVariables means the run has variables for templates.
func ForegroundRunWarnings(job *api.Job, hasNomadVariables bool) []*JobFault {
	if job == nil {
		return nil
	}
	r := newFaultReport()
	for _, g := range job.TaskGroups {
		at := r.atPath("group", pointer.Value(g.Name))
		disk := pointer.Value(g.EphemeralDisk)
		for _, i := range []ignoredField{
			{"update", g.Update != nil && !reflect.DeepEqual(g.Update, api.DefaultUpdateStrategy())},
			{"scaling", g.Scaling != nil},
			{"ephemeral_disk sticky", pointer.Value(disk.Sticky)},
			{"ephemeral_disk migrate", pointer.Value(disk.Migrate)},
			{"action", slices.ContainsFunc(g.Tasks, func(t *api.Task) bool { return len(t.Actions) > 0 })},
		} {
			if i.isSet {
				at.atPath(strings.Fields(i.name)...).addFault("group %q: %s has no effect for a job that runs in the foreground", pointer.Value(g.Name), i.name)
			}
		}
		for _, t := range g.Tasks {
			if !hasNomadVariables && slices.ContainsFunc(t.Templates, readsNomadVariable) {
				at.atPath("task", t.Name, "template", "0").addFault("task %q of group %q: a template waits for a variable (nomadVar), and a job that runs in the foreground has no variables: set it with -nomad-var PATH KEY=VALUE, or use the variables of the job file", t.Name, pointer.Value(g.Name))
			}
		}
	}
	return *r.faults
}
