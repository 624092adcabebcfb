package bridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// trackedConnection is an entry in the kernel's tracked connection table (conntrack).
type trackedConnection struct {
	request, reply connectionDirection // packets from the side that opened the connection, and from the other side
	netlinkMessage []byte              // the kernel's netlink message with the entry
}

// connectionDirection has the packets' addresses and ports for one direction of a connection.
type connectionDirection struct {
	source, destination netip.Addr
	ipProtocol          byte
	destinationPort     int
}

// deleteTrackedConnections deletes the tracked connection entries for which matches returns true. It lists the entries for IPv4
// and IPv6 in one request, because a request takes 10 ms even without connections: the kernel walks through all table buckets.
func deleteTrackedConnections(matches func(*trackedConnection) bool) error {
	entries, err := dumpNetfilterSubsystem(netlink.ConntrackTable)
	if err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	for _, raw := range entries {
		c, err := parseTrackedConnection(raw)
		if err != nil {
			return fmt.Errorf("tracked connection: %w", err)
		}
		if !matches(c) {
			continue
		}
		request := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		request.AddRawData(c.netlinkMessage)
		opcount.Count(opcount.Netlink)
		if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete tracked connection: %w", err)
		}
	}
	return nil
}

// dumpNetfilterSubsystem returns a netfilter subsystem's entries, such as the conntrack table. It returns none if the kernel
// lacks the subsystem: without the module nf_conntrack_netlink no program can delete entries, so their absence must not cause a
// failure.
func dumpNetfilterSubsystem(subsystem int) (entries [][]byte, err error) {
	dump := nl.NewNetlinkRequest(subsystem<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	dump.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	opcount.Count(opcount.Netlink)
	entries, err = retryInterruptedDump(func() ([][]byte, error) { return dump.Execute(unix.NETLINK_NETFILTER, 0) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // EINVAL is the kernel's answer to an unknown subsystem
	}
	return entries, err
}

// nfgenmsgSize is the size, in bytes, of struct nfgenmsg, which precedes a message's attributes.
const nfgenmsgSize = 4

func parseTrackedConnection(netlinkMessage []byte) (*trackedConnection, error) {
	if len(netlinkMessage) < nfgenmsgSize {
		return nil, errors.New("the message is too short")
	}
	c := &trackedConnection{netlinkMessage: netlinkMessage}
	return c, forEachNetlinkAttribute(netlinkMessage[nfgenmsgSize:], func(kind uint16, value []byte) error {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			return c.request.parseTuple(value)
		case nl.CTA_TUPLE_REPLY:
			return c.reply.parseTuple(value)
		}
		return nil
	})
}

// parseTuple reads a message's tuple, which describes one direction's packets. It skips unknown attributes.
func (p *connectionDirection) parseTuple(tuple []byte) error {
	return forEachNetlinkAttribute(tuple, func(kind uint16, value []byte) error {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return forEachNetlinkAttribute(value, func(kind uint16, value []byte) error {
				address, _ := netip.AddrFromSlice(value) // the zero value matches nothing
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					p.source = address
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					p.destination = address
				}
				return nil
			})
		case nl.CTA_TUPLE_PROTO:
			return forEachNetlinkAttribute(value, func(kind uint16, value []byte) error {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(value) == 1:
					p.ipProtocol = value[0]
				case kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
					p.destinationPort = int(binary.BigEndian.Uint16(value))
				}
				return nil
			})
		}
		return nil
	})
}

// forEachNetlinkAttribute calls f for each netlink attribute in encoded.
func forEachNetlinkAttribute(encoded []byte, f func(kind uint16, value []byte) error) error {
	attributes, err := nl.ParseRouteAttr(encoded)
	if err != nil {
		return err
	}
	for _, a := range attributes {
		if err := f(a.Attr.Type&nl.NLA_TYPE_MASK, a.Value); err != nil {
			return err
		}
	}
	return nil
}

// deleteUnforwardedUDPConnections deletes the entries for UDP packets sent to the ports before the ports were forwarded. The
// kernel applies the forwarding rules only to an entry's first packet, and a client that continues to send would keep its entry
// alive.
func deleteUnforwardedUDPConnections(ports []ForwardedPort) error {
	return deleteTrackedConnections(func(c *trackedConnection) bool { return isUnforwardedUDPConnection(c, ports) })
}

// isUnforwardedUDPConnection reports whether an entry is for UDP packets to one of the ports without a translated destination.
func isUnforwardedUDPConnection(c *trackedConnection, ports []ForwardedPort) bool {
	// If the requests' destination was translated, the replies come from the namespace's address instead.
	return c.request.ipProtocol == unix.IPPROTO_UDP && c.request.destination == c.reply.source &&
		slices.ContainsFunc(ports, func(p ForwardedPort) bool { return p.HostPort == c.request.destinationPort })
}

// deleteConnectionsOfAddresses deletes the entries for connections from or to a namespace with one of the addresses.
func deleteConnectionsOfAddresses(addresses map[netip.Addr]bool) error {
	if len(addresses) == 0 {
		return nil
	}
	return deleteTrackedConnections(func(c *trackedConnection) bool {
		return addresses[c.request.source] || addresses[c.reply.source]
	})
}
