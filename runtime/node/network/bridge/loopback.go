package bridge

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// bridgeNetfilterSysctl is the parameter that makes the kernel apply the IPv6 rules to frames within a bridge. The file
// exists while the module br_netfilter is loaded.
const bridgeNetfilterSysctl = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"

// canForwardLoopback6 reports whether connections to [::1] can be forwarded. While the kernel filters bridged frames, it
// translates a reply's addresses while the frame is in the bridge, and then drops the reply, because a packet from another
// interface must not have the address ::1.
func (b *Bridge) canForwardLoopback6() bool {
	if !b.config.IPv6Subnet.IsValid() {
		return false
	}
	value, err := os.ReadFile(bridgeNetfilterSysctl)
	return errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(value)) == "0"
}

// loopback6Route returns the route that makes the machine accept packets to ::1 from the bridge: replies with a destination
// translated back. The kernel drops other packets to ::1 earlier. Because this route has a large metric, all other packets
// use the loopback interface's route.
func loopback6Route(device *netlink.Bridge) *netlink.Route {
	return &netlink.Route{
		LinkIndex: device.Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Priority: 1 << 20,
		Dst: &net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
	}
}

// ensureLoopback6Route adds the route that forwarded connections to [::1] need. The kernel removes the route with the bridge.
func (b *Bridge) ensureLoopback6Route(device *netlink.Bridge) error {
	if !b.config.IPv6Subnet.IsValid() {
		return nil
	}
	opcount.Count(opcount.Netlink)
	if err := netlink.RouteReplace(loopback6Route(device)); err != nil {
		return fmt.Errorf("set the route for replies to ::1: %w", err)
	}
	return nil
}

// removeLoopback6Route removes the route if it exists. The bridge stays.
func removeLoopback6Route(device *netlink.Bridge) error {
	opcount.Count(opcount.Netlink)
	err := netlink.RouteDel(loopback6Route(device))
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EOPNOTSUPP) { // no such route, or no IPv6
		return fmt.Errorf("remove the route for replies to ::1: %w", err)
	}
	return nil
}
