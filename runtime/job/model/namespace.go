package model

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const maxNamespaceDescription = 256

var namespaceNamePattern = lazyRegexp(`^[a-zA-Z0-9-]{1,128}$`)

// ValidateNamespace returns an error if a namespace is invalid.
func ValidateNamespace(n *api.Namespace) error {
	switch {
	case !namespaceNamePattern().MatchString(n.Name):
		return fmt.Errorf("invalid name %q. Must match regex %s", n.Name, namespaceNamePattern())
	case len(n.Description) > maxNamespaceDescription:
		return fmt.Errorf("description longer than %d", maxNamespaceDescription)
	case n.Quota != "":
		return fmt.Errorf("quota %q: quotas are a feature of Nomad Enterprise", n.Quota)
	}
	if c := n.NodePoolConfiguration; c != nil && hasNonDefaultSettings(c.Default, api.NodePoolDefault, c.Allowed, c.Denied) {
		//lint:ignore ST1005 the text is Nomad's
		return errors.New("invalid node pool configuration: Node Pools Governance is unlicensed.")
	}
	if c := n.VaultConfiguration; c != nil && hasNonDefaultSettings(c.Default, defaultClusterName, c.Allowed, c.Denied) {
		//lint:ignore ST1005 the text is Nomad's
		return errors.New("invalid vault configuration: Multi-Cluster Vault is unlicensed.")
	}
	if c := n.ConsulConfiguration; c != nil && hasNonDefaultSettings(c.Default, defaultClusterName, c.Allowed, c.Denied) {
		//lint:ignore ST1005 the text is Nomad's
		return errors.New("invalid consul configuration: Multi-Cluster Consul is unlicensed.")
	}
	return nil
}

// checkNamespaceCapabilities reports the drivers and network modes of a job that its namespace does not permit. A group without a
// network block may be in each namespace.
func checkNamespaceCapabilities(r *faultReport, job *api.Job, n *api.Namespace) {
	caps := n.Capabilities
	if caps == nil {
		return
	}
	for _, g := range job.TaskGroups {
		group := r.atPath("group", pointer.Value(g.Name))
		for _, t := range g.Tasks {
			if !isPermitted(t.Driver, caps.EnabledTaskDrivers, caps.DisabledTaskDrivers) {
				group.atPath("task", t.Name, "driver").addFault("used task driver %q is not allowed in namespace %q", t.Driver, n.Name)
			}
		}
		for i, network := range g.Networks {
			if mode := cmp.Or(network.Mode, "host"); !isPermitted(mode, caps.EnabledNetworkModes, caps.DisabledNetworkModes) {
				group.atPath("network", strconv.Itoa(i), "mode").addFault("used group network mode %q is not allowed in namespace %q", mode, n.Name)
			}
		}
	}
}

// isPermitted reports whether a name is enabled, or none is, and it is not disabled.
func isPermitted(name string, enabled, disabled []string) bool {
	return (len(enabled) == 0 || slices.Contains(enabled, name)) && !slices.Contains(disabled, name)
}

// hasNonDefaultSettings reports whether a part of a namespace differs from the default.
func hasNonDefaultSettings(chosen, defaultValue string, allowed, denied []string) bool {
	return chosen != "" && chosen != defaultValue || len(allowed)+len(denied) > 0
}

// ValidateNamespaceName returns an error if a namespace name is invalid.
func ValidateNamespaceName(name string) error { return ValidateNamespace(&api.Namespace{Name: name}) }
