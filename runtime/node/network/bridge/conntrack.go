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
)

// trackedConnection is an entry of the kernel's connection tracking.
type trackedConnection struct {
	request, reply trackedPackets
	raw            []byte // as the kernel has sent it
}

// trackedPackets identify the packets of one direction.
type trackedPackets struct {
	source, destination netip.Addr
	protocol            byte
	destinationPort     int
}

// deleteTracked deletes the entries of the connection tracking that match. It reads the table of the kernel once, for
// both families, because the kernel walks through all its buckets: 10 ms on a machine without
// connections.
func deleteTracked(matches func(*trackedConnection) bool) error {
	const table = int(netlink.ConntrackTable) << 8
	dump := nl.NewNetlinkRequest(table|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	dump.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	entries, err := list(func() ([][]byte, error) { return dump.Execute(unix.NETLINK_NETFILTER, 0) })
	if err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	for _, raw := range entries {
		c, err := parseTracked(raw)
		if err != nil {
			return fmt.Errorf("tracked connection: %w", err)
		}
		if !matches(c) {
			continue
		}
		request := nl.NewNetlinkRequest(table|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		request.AddRawData(c.raw)
		if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete tracked connection: %w", err)
		}
	}
	return nil
}

// headerSize is the size of struct nfgenmsg.
const headerSize = 4

func parseTracked(raw []byte) (*trackedConnection, error) {
	if len(raw) < headerSize {
		return nil, errors.New("the message is too short")
	}
	c := &trackedConnection{raw: raw}
	return c, eachAttribute(raw[headerSize:], func(kind uint16, value []byte) error {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			return c.request.parse(value)
		case nl.CTA_TUPLE_REPLY:
			return c.reply.parse(value)
		}
		return nil
	})
}

// parse reads a tuple. An attribute that it does not know is skipped.
func (p *trackedPackets) parse(tuple []byte) error {
	return eachAttribute(tuple, func(kind uint16, value []byte) error {
		switch kind {
		case nl.CTA_TUPLE_IP:
			return eachAttribute(value, func(kind uint16, value []byte) error {
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
			return eachAttribute(value, func(kind uint16, value []byte) error {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(value) == 1:
					p.protocol = value[0]
				case kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
					p.destinationPort = int(binary.BigEndian.Uint16(value))
				}
				return nil
			})
		}
		return nil
	})
}

func eachAttribute(b []byte, f func(kind uint16, value []byte) error) error {
	attributes, err := nl.ParseRouteAttr(b)
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

// deleteUnforwarded removes the entries of UDP packets to the ports that were not
// forwarded: the kernel applies rules only to the first packet of an entry. A client that sends again and again
// keeps its entry.
func deleteUnforwarded(ports []Port) error {
	return deleteTracked(func(c *trackedConnection) bool { return isUnforwarded(c, ports) })
}

// isUnforwarded reports whether the packets are UDP packets to these ports whose destination was not changed.
func isUnforwarded(c *trackedConnection, ports []Port) bool {
	return c.request.protocol == unix.IPPROTO_UDP && c.request.destination == c.reply.source &&
		slices.ContainsFunc(ports, func(p Port) bool { return p.HostPort == c.request.destinationPort })
}

// deleteConnections removes the entries whose peer is a namespace with one of the addresses.
func deleteConnections(addresses map[netip.Addr]bool) error {
	if len(addresses) == 0 {
		return nil
	}
	return deleteTracked(func(c *trackedConnection) bool {
		return addresses[c.request.source] || addresses[c.reply.source]
	})
}
