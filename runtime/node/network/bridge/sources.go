package bridge

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newSourceTable returns the table that checks what namespaces send.
func newSourceTable(bridge string) *nftables.Table {
	return &nftables.Table{Name: tableName(bridge), Family: nftables.TableFamilyBridge}
}

// newSourceSet returns the set of what the interfaces of a bridge may send from: the interface, its hardware
// address and an address of a family.
func newSourceSet(table *nftables.Table, f family) *nftables.Set {
	return &nftables.Set{
		Table: table, Name: "sources" + f.name, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, f.address),
	}
}

// newInterfaceSet returns the set of the interfaces that lead to namespaces: a bridge of the administrator can have others.
func newInterfaceSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: "interfaces", KeyType: nftables.TypeIFName}
}

// sourceSets returns all sets of the table.
func sourceSets(table *nftables.Table) []*nftables.Set {
	sets := []*nftables.Set{newInterfaceSet(table)}
	for _, f := range families {
		sets = append(sets, newSourceSet(table, f))
	}
	return sets
}

// sourceElements returns the elements of sourceSets for a namespace, in the same order.
func sourceElements(allocID string, s Status) [][]element {
	name, hardware := interfaceKey(hostInterface(allocID)), hardwareAddress(s.Address)
	newElement := func(key ...[]byte) element {
		return element{SetElement: nftables.SetElement{Key: bytes.Join(key, nil), Comment: allocID}}
	}
	newSource := func(address netip.Addr) element {
		return newElement(name, hardware, []byte{0, 0}, address.AsSlice()) // each part has a multiple of 4 bytes
	}
	// Neighbours are found with the link-local address, and multicast groups joined without one.
	sources6 := []element{newSource(linkLocalAddress(hardware)), newSource(netip.IPv6Unspecified())}
	if s.Address6.IsValid() {
		sources6 = append(sources6, newSource(s.Address6))
	}
	return [][]element{{newElement(name)}, {newSource(s.Address)}, sources6}
}

// linkLocalAddress returns the address that the kernel makes of a hardware address (RFC 4291, appendix A).
func linkLocalAddress(hardware net.HardwareAddr) netip.Addr {
	h := hardware
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: h[0] ^ 2, h[1], h[2], 0xff, 0xfe, h[3], h[4], h[5]})
}

func interfaceKey(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// ensureSourceCheck writes the table that checks what namespaces send, except what the namespace that is being connected
// may send from. If there was no table, all connected namespaces are in it.
func (b *Bridge) ensureSourceCheck(c *nftables.Conn, device *netlink.Bridge) error {
	table := newSourceTable(b.config.Name)
	tables, err := c.ListTablesOfFamily(table.Family)
	if err != nil {
		return fmt.Errorf("nftables: list the tables of bridges: %w", err)
	}
	isNew := !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name })
	c.AddTable(table)
	for _, set := range sourceSets(table) {
		if err := c.AddSet(set, nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	if isNew {
		if err := addSources(c, table, device); err != nil {
			return err
		}
	}
	priority := *nftables.ChainPriorityRaw
	chain := &nftables.Chain{Name: "prerouting", Table: table, Hooknum: nftables.ChainHookPrerouting, Priority: &priority, Type: nftables.ChainTypeFilter}
	c.AddChain(chain)
	c.FlushChain(chain)
	for _, rule := range sourceRules(table) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
	}
	return nil
}

// addSources adds all connected namespaces.
func addSources(c *nftables.Conn, table *nftables.Table, device *netlink.Bridge) error {
	ports, err := portsOf(device)
	if err != nil {
		return err
	}
	for i, set := range sourceSets(table) {
		var elements []nftables.SetElement
		for _, port := range ports {
			allocID, status := parseAlias(port.Attrs().Alias)
			if !status.Address.IsValid() {
				continue
			}
			for _, e := range sourceElements(allocID, status)[i] {
				elements = append(elements, e.SetElement)
			}
		}
		if len(elements) == 0 {
			continue
		}
		if err := c.SetAddElements(set, elements); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	return nil
}

// Offsets in headers of the link layer, of ARP for IPv4 (RFC 826), and of ICMPv6 (RFC 4861, section 4).
const (
	sourceHardwareAt   = 6
	arpHardwareAt      = 8
	arpAddressAt       = 14
	icmp6TypeAt        = 0
	neighbourAddressAt = 8
)

// Types of ICMPv6 messages.
const (
	routerAdvertisement    = 134
	neighbourAdvertisement = 136
	redirect               = 137
)

// sourceRules returns the rules for frames that a namespace sends. DESIGN.md has them in the language of nft.
func sourceRules(table *nftables.Table) [][]expr.Any {
	v4, v6 := families[0], families[1]
	accepted, dropped := verdict(expr.VerdictAccept), verdict(expr.VerdictDrop)
	return [][]expr.Any{
		rule(isNoNamespace(table), accepted),
		rule(hasProtocol(unix.ETH_P_IP), isSource(table, v4, ofLink(sourceHardwareAt), ofNetwork(v4.sourceAt, 4), true), accepted),
		rule(hasProtocol(unix.ETH_P_ARP), isSource(table, v4, ofLink(sourceHardwareAt), ofNetwork(arpAddressAt, 4), true),
			isSource(table, v4, ofNetwork(arpHardwareAt, 6), ofNetwork(arpAddressAt, 4), true), accepted),
		rule(isICMP6(routerAdvertisement), dropped),
		rule(isICMP6(redirect), dropped),
		rule(isICMP6(neighbourAdvertisement), isSource(table, v6, ofLink(sourceHardwareAt), ofTransport(neighbourAddressAt, 16), false), dropped),
		rule(hasProtocol(unix.ETH_P_IPV6), isSource(table, v6, ofLink(sourceHardwareAt), ofNetwork(v6.sourceAt, 16), true), accepted),
		rule(dropped),
	}
}

// isNoNamespace matches frames of interfaces that lead to no namespace.
func isNoNamespace(table *nftables.Table) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&expr.Lookup{SourceRegister: firstRegister, SetName: newInterfaceSet(table).Name, Invert: true},
	}
}

func ofLink(offset uint32) expr.Payload {
	return expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: offset, Len: 6}
}
func ofNetwork(offset, size uint32) expr.Payload {
	return expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}
func ofTransport(offset, size uint32) expr.Payload {
	return expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}
}

// isSource matches frames whose interface, hardware address and address are, or are not, an element of the set.
func isSource(table *nftables.Table, f family, hardware, address expr.Payload, equal bool) []expr.Any {
	hardware.DestRegister, address.DestRegister = firstRegister+unix.IFNAMSIZ/4, firstRegister+unix.IFNAMSIZ/4+2
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&hardware, &address,
		&expr.Lookup{SourceRegister: firstRegister, SetName: newSourceSet(table, f).Name, Invert: !equal},
	}
}

func hasProtocol(protocol uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(protocol >> 8), byte(protocol)}},
	}
}

func isICMP6(messageType byte) []expr.Any {
	return rule(hasProtocol(unix.ETH_P_IPV6), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: icmp6TypeAt, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{messageType}},
	})
}
