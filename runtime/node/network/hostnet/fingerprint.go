package hostnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/bridge"
)

// Capabilities are the machine's network modes, besides host and none, and node attributes.
type Capabilities struct {
	NetworkModes   []string          // such as bridge and cni/NAME
	NodeAttributes map[string]string // node attribute -> value
}

// Fingerprint returns the network modes, and an error that says why a mode is missing. It runs each CNI plugin and
// creates a bridge in a temporary network namespace.
func (h *HostNamespaces) Fingerprint(ctx context.Context) (Capabilities, error) {
	c := Capabilities{NodeAttributes: make(map[string]string)}
	if err := netns.Probe(func() error { return probeBridgeInNewNamespace(h.config.Bridge) }); err != nil {
		return c, fmt.Errorf("no network modes bridge and cni: %w", err)
	}
	c.NetworkModes = append(c.NetworkModes, modeBridge)
	c.NodeAttributes["nomad.bridge.hairpin_mode"] = strconv.FormatBool(!h.config.Bridge.NoHairpin)
	names, err := h.cni.ReadNetworkNames()
	for _, name := range names {
		c.NetworkModes = append(c.NetworkModes, cniPrefix+name)
	}
	for name, version := range h.cni.RunForPluginVersionByName(ctx) {
		c.NodeAttributes["plugins.cni.version."+name] = version
	}
	return c, errors.Join(err, checkNoIptablesLegacyFilterRules("/proc/net"))
}

// checkNoIptablesLegacyFilterRules returns an error if the machine has iptables-legacy filter rules, which can drop the
// bridge's packets. The rules are not in nftables, so the agent cannot add a rule that accepts these packets.
func checkNoIptablesLegacyFilterRules(procNetDir string) error {
	for program, file := range map[string]string{"iptables-legacy": "ip_tables_names", "ip6tables-legacy": "ip6_tables_names"} {
		names, err := os.ReadFile(filepath.Join(procNetDir, file))
		if err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
			return fmt.Errorf("%[1]s has filter rules: if they drop forwarded packets, run %[1]s -I FORWARD -i BRIDGE -j ACCEPT, and the same with -o", program)
		}
	}
	return nil
}

// probeBridgeInNewNamespace creates a veth pair, a bridge and its rules in the calling thread's network namespace,
// which must be new.
func probeBridgeInNewNamespace(c bridge.Config) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "probe"
	opcount.Count(opcount.Netlink)
	opcount.Count(opcount.Netlink)
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "peer"})
	if err != nil {
		return fmt.Errorf("create a veth pair: %w", err)
	}
	return bridge.New(c).ProbeInNewNetworkNamespace()
}
