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

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// newSourceCheckTable returns the table that drops a namespace's frames with foreign source addresses.
func newSourceCheckTable(bridgeName string) *nftables.Table {
	return &nftables.Table{Name: nftablesTableName(bridgeName), Family: nftables.TableFamilyBridge}
}

// newPermittedSourceSet returns the set of permitted source addresses. An element is a bridge interface, and the hardware
// address and an address from the namespace behind the interface.
func newPermittedSourceSet(table *nftables.Table, f ipFamily) *nftables.Set {
	return &nftables.Set{
		Table: table, Name: "sources" + f.setNameSuffix, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, f.addressType),
	}
}

// newCheckedInterfaceSet returns the set of interfaces with checked frames: the namespaces' interfaces. An administrator's
// bridge can have other interfaces.
func newCheckedInterfaceSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: "interfaces", KeyType: nftables.TypeIFName}
}

// sourceCheckSets returns all sets in the table from newSourceCheckTable.
func sourceCheckSets(table *nftables.Table) []*nftables.Set {
	sets := []*nftables.Set{newCheckedInterfaceSet(table)}
	for _, f := range families {
		sets = append(sets, newPermittedSourceSet(table, f))
	}
	return sets
}

// sourceCheckElementsBySet returns a namespace's elements for each set from sourceCheckSets.
func sourceCheckElementsBySet(allocID string, s NamespaceStatus) [][]setElement {
	name, hardware := paddedInterfaceName(hostInterfaceName(allocID)), hardwareAddressForIPv4(s.IPv4Address)
	newElement := func(key ...[]byte) setElement {
		return setElement{SetElement: nftables.SetElement{Key: bytes.Join(key, nil), Comment: allocID}}
	}
	newSource := func(address netip.Addr) setElement {
		return newElement(name, hardware, []byte{0, 0}, address.AsSlice()) // each part is padded to a multiple of 4 bytes
	}
	// A namespace sends from its link-local address to find neighbours, and from :: to join multicast groups.
	sources6 := []setElement{newSource(linkLocalAddress(hardware)), newSource(netip.IPv6Unspecified())}
	if s.IPv6Address.IsValid() {
		sources6 = append(sources6, newSource(s.IPv6Address))
	}
	return [][]setElement{{newElement(name)}, {newSource(s.IPv4Address)}, sources6}
}

// linkLocalAddress returns the link-local address derived by the kernel from a hardware address (RFC 4291, appendix A).
func linkLocalAddress(hardwareAddress net.HardwareAddr) netip.Addr {
	h := hardwareAddress
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: h[0] ^ 2, h[1], h[2], 0xff, 0xfe, h[3], h[4], h[5]})
}

// paddedInterfaceName returns an interface name in nftables' form: padded with NULs.
func paddedInterfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

// ensureSourceCheckTable writes newSourceCheckTable's table. If it creates the table, it adds all connected namespaces'
// elements. It leaves out a namespace while it is being connected: permitSourcesAndForwardPorts adds its elements.
func (b *Bridge) ensureSourceCheckTable(c *nftables.Conn, device *netlink.Bridge) error {
	table := newSourceCheckTable(b.config.Name)
	opcount.Count(opcount.Netlink)
	tables, err := c.ListTablesOfFamily(table.Family)
	if err != nil {
		return fmt.Errorf("nftables: list the tables of bridges: %w", err)
	}
	tableIsNew := !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name })
	c.AddTable(table)
	for _, set := range sourceCheckSets(table) {
		if err := c.AddSet(set, nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	if tableIsNew {
		if err := addPermittedSourcesOfNamespaces(c, table, device); err != nil {
			return err
		}
	}
	priority := *nftables.ChainPriorityRaw
	chain := &nftables.Chain{Name: "prerouting", Table: table, Hooknum: nftables.ChainHookPrerouting, Priority: &priority, Type: nftables.ChainTypeFilter}
	c.AddChain(chain)
	c.FlushChain(chain)
	for _, rule := range sourceCheckRules(table) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
	}
	return nil
}

// addPermittedSourcesOfNamespaces adds all connected namespaces' elements to the sets.
func addPermittedSourcesOfNamespaces(c *nftables.Conn, table *nftables.Table, device *netlink.Bridge) error {
	ports, err := bridgePortInterfaces(device)
	if err != nil {
		return err
	}
	for i, set := range sourceCheckSets(table) {
		var elements []nftables.SetElement
		for _, port := range ports {
			allocID, status := parseInterfaceAlias(port.Attrs().Alias)
			if !status.IPv4Address.IsValid() {
				continue
			}
			for _, e := range sourceCheckElementsBySet(allocID, status)[i] {
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

// Offsets, in bytes, in the headers for Ethernet, for ARP with IPv4 (RFC 826), and for ICMPv6 (RFC 4861, section 4).
const (
	ethernetSourceOffset   = 6
	arpHardwareOffset      = 8
	arpAddressOffset       = 14
	icmp6TypeOffset        = 0
	neighbourAddressOffset = 8
)

// ICMPv6 message types.
const (
	routerAdvertisement    = 134
	neighbourAdvertisement = 136
	redirect               = 137
)

// sourceCheckRules returns the rules for frames from namespaces. DESIGN.md shows them in nft's language.
func sourceCheckRules(table *nftables.Table) [][]expr.Any {
	v4, v6 := families[0], families[1]
	accepted, dropped := verdictAction(expr.VerdictAccept), verdictAction(expr.VerdictDrop)
	return [][]expr.Any{
		joinExprs(matchNonNamespaceInterface(table), accepted),
		joinExprs(matchEtherType(unix.ETH_P_IP), matchPermittedSource(table, v4, hardwareAddressAt(ethernetSourceOffset), networkHeaderAt(v4.sourceAddressOffset, 4), true), accepted),
		joinExprs(matchEtherType(unix.ETH_P_ARP), matchPermittedSource(table, v4, hardwareAddressAt(ethernetSourceOffset), networkHeaderAt(arpAddressOffset, 4), true),
			matchPermittedSource(table, v4, networkHeaderAt(arpHardwareOffset, 6), networkHeaderAt(arpAddressOffset, 4), true), accepted),
		joinExprs(matchICMP6Type(routerAdvertisement), dropped),
		joinExprs(matchICMP6Type(redirect), dropped),
		joinExprs(matchICMP6Type(neighbourAdvertisement), matchPermittedSource(table, v6, hardwareAddressAt(ethernetSourceOffset), transportHeaderAt(neighbourAddressOffset, 16), false), dropped),
		joinExprs(matchEtherType(unix.ETH_P_IPV6), matchPermittedSource(table, v6, hardwareAddressAt(ethernetSourceOffset), networkHeaderAt(v6.sourceAddressOffset, 16), true), accepted),
		joinExprs(dropped),
	}
}

// matchNonNamespaceInterface matches frames from interfaces outside newCheckedInterfaceSet's set.
func matchNonNamespaceInterface(table *nftables.Table) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&expr.Lookup{SourceRegister: firstRegister, SetName: newCheckedInterfaceSet(table).Name, Invert: true},
	}
}

// hardwareAddressAt returns the hardware address at an offset in the Ethernet header.
func hardwareAddressAt(offset uint32) expr.Payload {
	return expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: offset, Len: 6}
}
func networkHeaderAt(offset, size uint32) expr.Payload {
	return expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}
func transportHeaderAt(offset, size uint32) expr.Payload {
	return expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: size}
}

// matchPermittedSource matches frames if interface, hardware address and address are an element in the source set, or with
// isPermitted false, are not.
func matchPermittedSource(table *nftables.Table, f ipFamily, hardwareAddress, address expr.Payload, isPermitted bool) []expr.Any {
	hardwareAddress.DestRegister, address.DestRegister = firstRegister+unix.IFNAMSIZ/4, firstRegister+unix.IFNAMSIZ/4+2
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&hardwareAddress, &address,
		&expr.Lookup{SourceRegister: firstRegister, SetName: newPermittedSourceSet(table, f).Name, Invert: !isPermitted},
	}
}

// matchEtherType matches frames with an Ethernet protocol number, such as IPv4's.
func matchEtherType(etherType uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(etherType >> 8), byte(etherType)}},
	}
}

func matchICMP6Type(messageType byte) []expr.Any {
	return joinExprs(matchEtherType(unix.ETH_P_IPV6), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: icmp6TypeOffset, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{messageType}},
	})
}
