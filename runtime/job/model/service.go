package model

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// ProviderNomad is the provider for services the agent itself registers and checks.
const ProviderNomad = "nomad"

var (
	serviceNamePattern   = lazyRegexp(`^(?i:[a-z0-9]|[a-z0-9][a-z0-9\-]{0,61}[a-z0-9])$`)
	interpolationPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{[^}]*\}`) })
	addressModes         = []string{"", "auto", "host", "driver", "alloc", "alloc_ipv6"}
	onUpdateValues       = []string{"", api.OnUpdateRequireHealthy, api.OnUpdateIgnoreWarn, api.OnUpdateIgnore}
)

// ValidServiceName reports whether a name without references is a valid service name.
func ValidServiceName(name string) bool { return serviceNamePattern().MatchString(name) }

// ServiceNameFault returns why a name without references is no valid service name, or "" if it is valid.
func ServiceNameFault(name string) string {
	if ValidServiceName(name) {
		return ""
	}
	for _, c := range name {
		if c != '-' && !(c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c))) {
			return fmt.Sprintf("it contains %q, and only letters, digits and dashes are allowed", c)
		}
	}
	switch {
	case name == "":
		return "it is empty"
	case len(name) > maxServiceNameLength:
		return fmt.Sprintf("it has %d characters, and %d are allowed", len(name), maxServiceNameLength)
	}
	return "it starts or ends with a dash"
}

// maxServiceNameLength is the length of serviceNamePattern.
const maxServiceNameLength = 63

// checkGroupServices checks the group's services, the rules across these and task services, and the checks that need a task.
func checkGroupServices(r *faultReport, g *api.TaskGroup) {
	all := r.nestedReport()
	unique, providers := map[string]bool{}, map[string]bool{}
	var duplicateServices []string
	note := func(owner string, s *api.Service) {
		providers[s.Provider] = true
		key := owner + "->" + s.Name + ":" + s.PortLabel
		if unique[key] {
			duplicateServices = append(duplicateServices, key)
		}
		unique[key] = true
	}
	tasks := taskNameSet(g)
	for i, s := range g.Services {
		note("group", s)
		at := all.nestedReport("service", positionText(i))
		checkService(at, s)
		all.addNested(at, "Service[%d] %s validation failed:", i, s.Name)
		checkGroupOnlyServiceRules(all.atPath("service", positionText(i)), tasks, s)
	}
	for _, t := range g.Tasks {
		for _, s := range t.Services {
			note(t.Name, s)
		}
	}
	if len(providers) > 1 {
		all.addFault("Multiple service providers used: task group services must use the same provider")
	}
	if len(duplicateServices) > 0 {
		slices.Sort(duplicateServices)
		all.addFault("Services are not unique: %v", slices.Compact(duplicateServices))
	}
	r.addNested(all, "Task group service validation failed:")

	scripts := r.nestedReport()
	for i, s := range g.Services {
		checkScriptChecksHaveTask(scripts.atPath("service", positionText(i)), pointer.Value(g.Name), s)
	}
	r.addNested(scripts, "Task group service check validation failed:")
}

func taskNameSet(g *api.TaskGroup) map[string]bool {
	names := make(map[string]bool, len(g.Tasks))
	for _, t := range g.Tasks {
		names[t.Name] = true
	}
	return names
}

// checkGroupOnlyServiceRules checks the rules for group services only.
func checkGroupOnlyServiceRules(r *faultReport, knownTasks map[string]bool, s *api.Service) {
	if s.AddressMode == "driver" {
		r.addFault(`service %q cannot use address_mode="driver", only services defined in a "task" block can use this mode`, s.Name)
	}
	for i, c := range s.Checks {
		at := r.atPath("check", positionText(i))
		checkServiceCheckHasPort(at, s, c)
		if c.TaskName != "" && !knownTasks[c.TaskName] {
			at.addFault("Check %s invalid: refers to non-existent task %s", c.Name, c.TaskName)
		}
	}
}

func checkScriptChecksHaveTask(r *faultReport, group string, s *api.Service) {
	for i, c := range s.Checks {
		if c.Type == "script" && s.TaskName == "" && c.TaskName == "" {
			r.atPath("check", positionText(i)).addFault("Service [%s]->%s or Check %s must specify task parameter", group, s.Name, c.Name)
		}
	}
}

// checkTaskServices checks a task's services against each other and against the ports available to the task.
func checkTaskServices(r *faultReport, g *api.TaskGroup, t *api.Task) {
	names := map[string]bool{}
	usedBy := map[string][]string{} // usedBy maps port labels to service names
	place := map[string][]string{}  // place maps a port label to the path of its first use
	type portLabelUse struct{ label, service string }
	seen := map[portLabelUse]bool{}
	for i, s := range t.Services {
		at := r.nestedReport("service", positionText(i))
		checkService(at, s)
		r.addNested(at, "service[%d] %q validation failed:", i, s.Name)

		at = r.atPath("service", positionText(i))
		if names[s.Name] {
			at.addFault("service %q is duplicate", s.Name)
		}
		names[s.Name] = true
		checkTaskOnlyServiceRules(at, t, s)
		for label, path := range servicePortLabelsWithPath(s) {
			if place[label] == nil {
				place[label] = append([]string{"service", positionText(i)}, path...)
			}
			if u := (portLabelUse{label, s.Name}); !seen[u] {
				seen[u] = true
				usedBy[label] = append(usedBy[label], s.Name)
			}
		}
	}
	known := portLabelsOfGroupAndTask(g, t)
	for _, label := range slices.Sorted(maps.Keys(usedBy)) {
		if !known[label] {
			at := r.atPath(place[label]...)
			at.addFault("port label %q referenced by services %s does not exist", label, strings.Join(usedBy[label], ", ")).hint = func() string { return portLabelHint(label, known) }
		}
	}
}

// servicePortLabelsWithPath returns the port labels of a service and its checks, each with the attribute's path. It includes a
// numeric service port, unless the address mode is driver, but no numeric check ports, which have their own rule.
func servicePortLabelsWithPath(s *api.Service) iter.Seq2[string, []string] {
	return func(yield func(string, []string) bool) {
		if s.PortLabel != "" && !(isInteger(s.PortLabel) && s.AddressMode == "driver") && !yield(s.PortLabel, []string{"port"}) {
			return
		}
		for i, c := range s.Checks {
			if c.PortLabel != "" && !isInteger(c.PortLabel) && !yield(c.PortLabel, []string{"check", positionText(i), "port"}) {
				return
			}
		}
	}
}

func isInteger(label string) bool {
	_, err := strconv.Atoi(label)
	return err == nil
}

// addressModeOfCheck returns a check's address mode.
func addressModeOfCheck(s *api.Service, c api.ServiceCheck) string {
	if c.AddressMode != "" {
		return c.AddressMode
	}
	return s.AddressMode
}

func portLabelsOfGroupAndTask(g *api.TaskGroup, t *api.Task) map[string]bool {
	labels := map[string]bool{}
	var networks []*api.NetworkResource
	if len(g.Networks) > 0 {
		networks = append(networks, g.Networks[0])
	}
	if t.Resources != nil {
		networks = append(networks, t.Resources.Networks...)
	}
	for _, n := range networks {
		if n == nil {
			continue
		}
		for _, p := range slices.Concat(n.ReservedPorts, n.DynamicPorts) {
			labels[p.Label] = true
		}
	}
	return labels
}

// checkTaskOnlyServiceRules checks the rules for task services only.
func checkTaskOnlyServiceRules(r *faultReport, t *api.Task, s *api.Service) {
	if s.AddressMode == "alloc" || s.AddressMode == "alloc_ipv6" {
		r.addFault(`service %q cannot use address_mode=%q, only services defined in a "group" block can use this mode`, s.Name, s.AddressMode)
	}
	if s.Connect != nil {
		r.atPath("connect").addFault(`service %q cannot have "connect" block, only services defined in a "group" block can`, s.Name)
	}
	if s.TaskName != "" && s.TaskName != t.Name {
		r.addFault("Service %s is invalid: may only specify task the service belongs to, got %q", s.Name, s.TaskName)
	}
	names := map[string]bool{}
	for i, c := range s.Checks {
		at := r.atPath("check", positionText(i))
		if names[c.Name] {
			at.addFault("check %q is duplicate", c.Name)
		}
		names[c.Name] = true
		checkServiceCheckHasPort(at, s, c)
		if isInteger(c.PortLabel) && addressModeOfCheck(s, c) != "driver" {
			at.addFault(`check %q cannot use a numeric port %s without setting address_mode="driver"`, c.Name, c.PortLabel)
		}
	}
}

func checkService(r *faultReport, s *api.Service) {
	if name := interpolationPattern().ReplaceAllString(s.Name, "x"); !ValidServiceName(name) {
		r.addFault("Service name must be valid per RFC 1123 and can contain only alphanumeric characters or dashes and must be no longer than 63 characters: %q", s.Name)
	}
	if !slices.Contains(addressModes, s.AddressMode) {
		r.addFault(`Service address_mode must be "auto", "host", or "driver"; not %q`, s.AddressMode)
	}
	if s.Address != "" && s.AddressMode != "" && s.AddressMode != "auto" {
		r.addFault(`Service address_mode must be "auto" if address is set`)
	}
	if !slices.Contains(onUpdateValues, s.OnUpdate) {
		r.addFault(`Service on_update must be "require_healthy", "ignore_warnings", or "ignore"; not %q`, s.OnUpdate)
	}
	if s.Identity != nil && len(s.Identity.Audience) == 0 {
		r.atPath("identity").addFault("Service identity must provide at least one target aud value")
	}
	switch s.Provider {
	case ProviderNomad:
		if s.Connect != nil {
			r.atPath("connect").addFault("Service with provider nomad cannot include Connect blocks")
		}
		for i, c := range s.Checks {
			for _, fault := range nomadServiceCheckFaults(c) {
				r.atPath("check", positionText(i)).addFault("%s", fault)
			}
		}
	case api.ServiceProviderConsul:
		for i, c := range s.Checks {
			for _, fault := range consulServiceCheckFaults(c) {
				r.atPath("check", positionText(i)).addFault("Check %s invalid: %s", c.Name, fault)
			}
			if c.Expose && (s.Connect == nil || s.Connect.SidecarService == nil) {
				r.atPath("check", positionText(i)).addFault("check %q of service %q sets expose, which requires the sidecar_service of a connect block: remove expose", c.Name, s.Name)
			}
		}
	default:
		r.addFault(`Service provider must be "consul", or "nomad"; not %q`, s.Provider)
	}
}
