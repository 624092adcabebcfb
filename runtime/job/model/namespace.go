package model

import (
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"
)

const maxNamespaceDescription = 256

var namespaceNamePattern = lazyRegexp(`^[a-zA-Z0-9-]{1,128}$`)

// ValidateNamespace returns an error if a namespace is invalid.
func ValidateNamespace(n *api.Namespace) error {
	caps := n.Capabilities
	switch {
	case !namespaceNamePattern().MatchString(n.Name):
		return fmt.Errorf("invalid name %q. Must match regex %s", n.Name, namespaceNamePattern())
	case len(n.Description) > maxNamespaceDescription:
		return fmt.Errorf("description longer than %d", maxNamespaceDescription)
	case n.Quota != "":
		return fmt.Errorf("quota %q: quotas are a feature of Nomad Enterprise", n.Quota)
	case caps != nil && len(caps.EnabledTaskDrivers)+len(caps.DisabledTaskDrivers)+len(caps.EnabledNetworkModes)+len(caps.DisabledNetworkModes) > 0:
		return errors.New("capabilities: drivers and network modes are enabled for the whole node, not for a namespace")
	}
	if c := n.NodePoolConfiguration; c != nil && hasNonDefaultSettings(c.Default, api.NodePoolDefault, c.Allowed, c.Denied) {
		return errors.New("invalid node pool configuration: Node Pools Governance is unlicensed.")
	}
	if c := n.VaultConfiguration; c != nil && hasNonDefaultSettings(c.Default, defaultClusterName, c.Allowed, c.Denied) {
		return errors.New("invalid vault configuration: Multi-Cluster Vault is unlicensed.")
	}
	if c := n.ConsulConfiguration; c != nil && hasNonDefaultSettings(c.Default, defaultClusterName, c.Allowed, c.Denied) {
		return errors.New("invalid consul configuration: Multi-Cluster Consul is unlicensed.")
	}
	return nil
}

// hasNonDefaultSettings reports whether a part of a namespace differs from the default.
func hasNonDefaultSettings(chosen, defaultValue string, allowed, denied []string) bool {
	return chosen != "" && chosen != defaultValue || len(allowed)+len(denied) > 0
}

// ValidateNamespaceName returns an error if a namespace name is invalid.
func ValidateNamespaceName(name string) error { return ValidateNamespace(&api.Namespace{Name: name}) }
