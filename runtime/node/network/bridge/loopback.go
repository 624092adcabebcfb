package bridge

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgedFramesSysctl is the parameter of the kernel with which it filters the IPv6 frames of all bridges. The file exists while
// the module br_netfilter is loaded.
const bridgedFramesSysctl = "/proc/sys/net/bridge/bridge-nf-call-ip6tables"

// forwardsLoopback6 reports whether connections to [::1] can be forwarded. While the kernel filters bridged frames, it
// translates a reply back before the machine receives it, and drops it then, because it comes from outside with the
// address ::1.
func (b *Bridge) forwardsLoopback6() bool {
	if !b.config.Subnet6.IsValid() {
		return false
	}
	value, err := os.ReadFile(bridgedFramesSysctl)
	return errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(value)) == "0"
}

// loopback6Route accepts packets to ::1 that come from the bridge, which are replies whose destination was
// translated back: the kernel drops others before. Its metric is larger than that of the route of the loopback interface, which
// all other packets use.
func loopback6Route(device *netlink.Bridge) *netlink.Route {
	return &netlink.Route{
		LinkIndex: device.Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Priority: 1 << 20,
		Dst: &net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
	}
}

// ensureLoopback6Route adds the route that connections to [::1] need. It is removed with the bridge.
func (b *Bridge) ensureLoopback6Route(device *netlink.Bridge) error {
	if !b.config.Subnet6.IsValid() {
		return nil
	}
	if err := netlink.RouteReplace(loopback6Route(device)); err != nil {
		return fmt.Errorf("set the route for replies to ::1: %w", err)
	}
	return nil
}

// removeLoopback6Route removes the route from a bridge that stays.
func removeLoopback6Route(device *netlink.Bridge) error {
	err := netlink.RouteDel(loopback6Route(device))
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EOPNOTSUPP) { // no such route, or no IPv6
		return fmt.Errorf("remove the route for replies to ::1: %w", err)
	}
	return nil
}
