package model

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/nomad/api"
)

// DefaultHostNetwork is the host network for ports that name none: the node's address.
const DefaultHostNetwork = "default"

// IsOnDefaultHostNetwork reports whether a job's port is on the host network for ports that name none.
func IsOnDefaultHostNetwork(p api.Port) bool {
	return p.HostNetwork == "" || p.HostNetwork == DefaultHostNetwork
}

const (
	maxPort     = 65535
	maxHostname = 254
)

// hostnamePattern matches a DNS name, underscores included: labels up to 63 characters long without a dash at the start or end.
var hostnamePattern = lazyRegexp(`^(?i:[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.(?i:[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?))*\.?$`)

// hostPort is a static port on one of the host's networks.
type hostPort struct {
	hostNetwork string
	port        int
}

func checkNetworks(r *faultReport, networks []*api.NetworkResource) {
	all := r.nestedReport()
	labels, static, args := map[string]bool{}, map[hostPort]string{}, map[string]bool{}
	for i, n := range networks {
		at := all.atPath("network", positionText(i))
		checkHostname(at.atPath("hostname"), n.Hostname)
		for _, p := range n.ReservedPorts {
			at := at.atPath("port", p.Label)
			checkPort(at, labels, n.Mode, p)
			checkStaticPort(at, static, p)
		}
		for _, p := range n.DynamicPorts {
			checkPort(at.atPath("port", p.Label), labels, n.Mode, p)
		}
		checkDNS(at.atPath("dns"), n.DNS)
		checkCNIArgs(at.atPath("cni"), args, n.CNI)
	}
	r.addNested(all, "Task group network validation failed:")
}

func checkHostname(r *faultReport, name string) {
	if name == "" || strings.Contains(name, "${") {
		return
	}
	if len(name) > maxHostname || !hostnamePattern().MatchString(name) {
		r.addFault("Hostname is not a valid DNS name")
	}
}

// checkDNS rejects values that would damage a task's resolver configuration. Nomad passes them to the driver.
func checkDNS(r *faultReport, dns *api.DNSConfig) {
	if dns == nil {
		return
	}
	check := func(field, kind string, values []string, valid func(string) bool) {
		for _, value := range values {
			if !strings.Contains(value, "${") && !valid(value) {
				r.atPath(field).addFault("DNS %s %q is not valid", kind, value)
			}
		}
	}
	check("servers", "server", dns.Servers, func(s string) bool { _, err := netip.ParseAddr(s); return err == nil })
	check("searches", "search domain", dns.Searches, func(s string) bool { return s == "." || len(s) <= maxHostname && hostnamePattern().MatchString(s) })
	check("options", "option", dns.Options, func(s string) bool { return s != "" && !strings.ContainsFunc(s, unicode.IsSpace) })
}

func checkPort(r *faultReport, usedLabels map[string]bool, mode string, p api.Port) {
	if usedLabels[p.Label] {
		r.addFault("Port label %s already in use by taskgroup network", p.Label)
	}
	usedLabels[p.Label] = true
	if p.To > maxPort {
		r.addFault("Port %q cannot be mapped to a port (%d) greater than %d", p.Label, p.To, maxPort)
	}
	if p.To < -1 {
		r.addFault("Port %q cannot be mapped to negative value %d", p.Label, p.To)
	}
	if p.IgnoreCollision && !IsHostNetworkMode(mode) {
		r.addFault("Port %q collision may not be ignored on non-host network mode %q", p.Label, mode)
	}
}

func checkStaticPort(r *faultReport, labelByStaticPort map[hostPort]string, p api.Port) {
	key := hostPort{p.HostNetwork, p.Value}
	if other, taken := labelByStaticPort[key]; taken && !p.IgnoreCollision {
		r.addFault("Static port %d already reserved by taskgroup network:%s", p.Value, other)
	} else if !taken {
		labelByStaticPort[key] = p.Label
	}
	if p.Value > maxPort {
		r.addFault("Port %s (%d) cannot be greater than %d", p.Label, p.Value, maxPort)
	}
}

// IsCNINetworkMode reports whether a network mode names a CNI network.
func IsCNINetworkMode(mode string) bool { return strings.HasPrefix(mode, "cni/") && mode != "cni/" }

// IsKnownNetworkMode reports whether there is a network mode: a group's tasks share the machine's network, or a namespace.
func IsKnownNetworkMode(mode string) bool {
	return IsHostNetworkMode(mode) || mode == "bridge" || mode == "none" || IsCNINetworkMode(mode)
}

// RequiredNodeNetworkMode returns the network mode the group requires from its node, "" if every node has it.
func RequiredNodeNetworkMode(g *api.TaskGroup) string {
	n := GroupNetworkUnlessHost(g)
	if n == nil || n.Mode == "none" {
		return ""
	}
	return n.Mode
}

// GroupNetworkUnlessHost returns the network that a group's tasks share, or nil if they use the host's network.
func GroupNetworkUnlessHost(g *api.TaskGroup) *api.NetworkResource {
	if len(g.Networks) == 0 || IsHostNetworkMode(g.Networks[0].Mode) {
		return nil
	}
	return g.Networks[0]
}

// IsHostNetworkMode reports whether a group's tasks share the machine's network in this network mode.
func IsHostNetworkMode(mode string) bool { return mode == "" || mode == "host" }

func checkCNIArgs(r *faultReport, usedArgKeys map[string]bool, cni *api.CNIConfig) {
	if cni == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(cni.Args)) {
		if strings.Contains(key, ";") {
			r.addFault("invalid ';' character in CNI arg key %q", key)
		}
		if value := cni.Args[key]; strings.Contains(value, ";") {
			r.addFault("invalid ';' character in CNI arg value %q", value)
		}
		if usedArgKeys[key] {
			r.addFault("duplicate CNI arg %q", key)
		}
		usedArgKeys[key] = true
	}
}
