package ports

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// FormatAllocationPorts formats the ports of an allocation with these resources: "http: 127.0.0.1:21422, db:
// 127.0.0.1:5432". If an HTTP check requests a port, the URL of the check replaces the address. group is the
// allocation's task group; it can be nil. The result is "" if the allocation has no ports.
func FormatAllocationPorts(resources *api.AllocatedResources, group *api.TaskGroup) string {
	if resources == nil {
		return ""
	}
	mappings := GroupPortMappings(resources)
	for _, task := range taskNamesInGroupOrder(resources, group) {
		mappings = append(mappings, taskNetworkPorts(resources, task)...)
	}
	return formatPortMappings(mappings, group)
}

// FormatTaskPorts formats the ports of one task of an allocation as FormatAllocationPorts does. A port of the group
// belongs to the tasks whose services or checks name it. A port that no service names belongs to each main task.
func FormatTaskPorts(alloc *api.Allocation, task *api.Task) string {
	if alloc.AllocatedResources == nil {
		return ""
	}
	group := apiclient.TaskGroupOf(alloc)
	mappings := slices.DeleteFunc(GroupPortMappings(alloc.AllocatedResources), func(m api.PortMapping) bool {
		users := taskNamesUsingPort(group, m.Label)
		if len(users) == 0 {
			return apiclient.LifecycleHookOf(task) != ""
		}
		return !slices.Contains(users, task.Name)
	})
	return formatPortMappings(append(mappings, taskNetworkPorts(alloc.AllocatedResources, task.Name)...), group)
}

// GroupPortMappings returns the ports of the group's network in an allocation with these resources.
func GroupPortMappings(resources *api.AllocatedResources) []api.PortMapping {
	if ports := resources.Shared.Ports; len(ports) > 0 {
		return slices.Clone(ports)
	}
	return portMappingsOfNetworks(resources.Shared.Networks)
}

// taskNetworkPorts returns the ports of the network block of a task, which is deprecated.
func taskNetworkPorts(resources *api.AllocatedResources, task string) []api.PortMapping {
	return portMappingsOfNetworks(pointer.Value(resources.Tasks[task]).Networks)
}

func portMappingsOfNetworks(networks []*api.NetworkResource) []api.PortMapping {
	var mappings []api.PortMapping
	for _, network := range networks {
		if network == nil {
			continue
		}
		for _, port := range slices.Concat(network.ReservedPorts, network.DynamicPorts) {
			mappings = append(mappings, api.PortMapping{Label: port.Label, Value: port.Value, To: port.To, HostIP: network.IP})
		}
	}
	return mappings
}

// taskNamesInGroupOrder returns the names of the tasks that have resources, in the order of the group.
func taskNamesInGroupOrder(resources *api.AllocatedResources, group *api.TaskGroup) []string {
	position := map[string]int{}
	if group != nil {
		for i, task := range group.Tasks {
			position[pointer.Value(task).Name] = i
		}
	}
	var names []string
	for name := range resources.Tasks {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(position[a], position[b]), cmp.Compare(a, b)) })
	return names
}

// taskNamesUsingPort returns the tasks of a group that name a port in a service or in a check.
func taskNamesUsingPort(group *api.TaskGroup, label string) []string {
	var users []string
	apiclient.ForEachService(group, func(service *api.Service, task string) {
		named := service.PortLabel == label
		for _, check := range service.Checks {
			named = named || check.PortLabel == label
		}
		if task = cmp.Or(task, service.TaskName); named && task != "" {
			users = append(users, task)
		}
	})
	return users
}

func formatPortMappings(mappings []api.PortMapping, group *api.TaskGroup) string {
	texts := make([]string, len(mappings))
	for i, m := range mappings {
		address := net.JoinHostPort(m.HostIP, strconv.Itoa(m.Value))
		if url := urlOfHTTPCheck(group, m.Label, address); url != "" {
			address = url
		} else if m.To > 0 && m.To != m.Value {
			address += fmt.Sprintf(" -> %d", m.To)
		}
		texts[i] = m.Label + ": " + address
	}
	return strings.Join(texts, ", ")
}

// urlOfHTTPCheck returns the URL of the first HTTP check that requests a port. It returns "" if there is no such check,
// or if the URL depends on variables of the task.
func urlOfHTTPCheck(group *api.TaskGroup, label, address string) string {
	url := ""
	apiclient.ForEachService(group, func(service *api.Service, _ string) {
		for _, check := range service.Checks {
			mode := cmp.Or(check.AddressMode, service.AddressMode, "auto")
			if url != "" || check.Type != "http" || cmp.Or(check.PortLabel, service.PortLabel) != label {
				continue
			}
			if (mode == "auto" || mode == "host") && service.Address == "" && !strings.Contains(check.Path, "${") {
				url = cmp.Or(check.Protocol, "http") + "://" + address + "/" + strings.TrimPrefix(check.Path, "/")
			}
		}
	})
	return url
}
