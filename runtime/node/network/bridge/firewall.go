package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// firewall has the nftables tables of a bridge.
type firewall struct {
	table   *nftables.Table
	sources *nftables.Table // see newSourceTable
}

// tableName returns the name of the table of a bridge.
func tableName(bridge string) string { return "nomad-lite-" + bridge }

func newTable(bridge string) *nftables.Table {
	return &nftables.Table{Name: tableName(bridge), Family: nftables.TableFamilyINet}
}

// family has the parts of rules that differ between IPv4 and IPv6.
type family struct {
	name       string
	proto      byte // in nftables and in netlink
	address    nftables.SetDatatype
	size       uint32 // bytes of an address
	sourceAt   uint32 // offset of the source address in the header
	destAt     uint32
	natResults uint32 // register that has the port of a map's value
	loopback   netip.Prefix
}

var loopback4, loopback6 = netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")

var families = []family{
	{"4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 4, 12, 16, firstRegister + 1, loopback4},
	{"6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 16, 8, 24, firstRegister + 4, loopback6},
}

// firstRegister is the first of the registers with 4 bytes. Values that are compared with a map are in
// consecutive registers.
const firstRegister = unix.NFT_REG32_00

func familyOf(address netip.Addr) family {
	if address.Is4() {
		return families[0]
	}
	return families[1]
}

// newPortMap returns the map of the forwarded ports of a family: from ports of all addresses of the machine, or from ports
// of one address each.
func newPortMap(table *nftables.Table, f family, ofAddress bool) *nftables.Set {
	name, key := "ports"+f.name, []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	if ofAddress {
		name, key = "addressports"+f.name, append([]nftables.SetDatatype{f.address}, key...)
	}
	return &nftables.Set{
		Table: table, Name: name, IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(key...),
		DataType: nftables.MustConcatSetType(f.address, nftables.TypeInetService),
	}
}

// portMaps returns all maps of the forwarded ports.
func portMaps(table *nftables.Table) (sets []*nftables.Set) {
	for _, f := range families {
		sets = append(sets, newPortMap(table, f, false), newPortMap(table, f, true))
	}
	return sets
}

// ensureFirewall writes the table of the bridge, except the forwarded ports, in one transaction. Connections
// continue.
func (b *Bridge) ensureFirewall(device *netlink.Bridge) (*firewall, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	table := c.AddTable(newTable(b.config.Name))
	for _, set := range portMaps(table) {
		if err := c.AddSet(set, nil); err != nil {
			return nil, fmt.Errorf("nftables: %w", err)
		}
	}
	prefixes, err := prefixesOf(device)
	if err != nil {
		return nil, err
	}
	for _, chain := range b.chains(table, prefixes) {
		c.AddChain(chain.Chain)
		c.FlushChain(chain.Chain)
		for _, rule := range chain.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain.Chain, Exprs: rule})
		}
	}
	if err := b.ensureSourceCheck(c, device); err != nil {
		return nil, err
	}
	if err := c.Flush(); err != nil {
		return nil, fmt.Errorf("nftables: write the tables %s: %w", table.Name, err)
	}
	return &firewall{table, newSourceTable(b.config.Name)}, b.ensureAccepted()
}

// prefixesOf returns the subnets of a bridge. They are more than those of the configuration while
// namespaces of an earlier configuration are connected.
func prefixesOf(device *netlink.Bridge) ([]netip.Prefix, error) {
	addresses, err := list(func() ([]netlink.Addr, error) { return netlink.AddrList(device, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the bridge: %w", err)
	}
	var prefixes []netip.Prefix
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.IPNet.String()); err == nil && !prefix.Addr().IsLinkLocalUnicast() {
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	return prefixes, nil
}

// chain is a chain with its rules.
type chain struct {
	*nftables.Chain
	rules [][]expr.Any
}

// rule joins the parts of a rule.
func rule(parts ...[]expr.Any) (joined []expr.Any) {
	for _, part := range parts {
		joined = append(joined, part...)
	}
	return joined
}

// chains returns the chains of the table. DESIGN.md has them in the language of nft.
func (b *Bridge) chains(table *nftables.Table, prefixes []netip.Prefix) []chain {
	name := b.config.Name
	newChain := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, kind nftables.ChainType, rules ...[]expr.Any) chain {
		return chain{&nftables.Chain{Name: name, Table: table, Hooknum: hook, Priority: &priority, Type: kind}, rules}
	}
	var incoming, local, masquerade [][]expr.Any
	for _, f := range families {
		ofAddress := rule(isFamily(f), isLocalDestination(), toPortOfAddress(table, f))
		forward := rule(b.isNoOtherAddress(f), isLocalDestination(), toForwardedPort(table, f))
		incoming = append(incoming, ofAddress, rule(isFamily(f), forward))
		if f.loopback == loopback6 && !b.forwardsLoopback6() {
			forward = rule(destination(loopback6, false), forward) // a client is refused at once
		}
		local = append(local, ofAddress, rule(isFamily(f), forward))
		masquerade = append(masquerade, rule(isFamily(f), source(f.loopback, true), outputInterface(name, true), masqueraded()))
	}
	for _, p := range prefixes {
		f := familyOf(p.Addr())
		masquerade = append(masquerade,
			rule(isFamily(f), source(p, true), outputInterface(name, false), masqueraded()),
			// A namespace that connects to a forwarded port of its own subnet must get the replies from the machine.
			rule(isFamily(f), source(p, true), destination(p, true), wasForwarded(true), masqueraded()))
	}
	return []chain{
		newChain("raw", nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, nftables.ChainTypeFilter,
			rule(isFamily(families[0]), inputInterface(name, true), destination(loopback4, true), verdict(expr.VerdictDrop))),
		newChain("prerouting", nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, incoming...),
		newChain("output", nftables.ChainHookOutput, *nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, local...),
		newChain("postrouting", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, masquerade...),
		newChain("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, nftables.ChainTypeFilter,
			rule(outputInterface(name, true), inputInterface(name, false), isNewConnection(), wasForwarded(false), verdict(expr.VerdictDrop))),
	}
}

func isFamily(f family) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
	}
}

func inputInterface(name string, equal bool) []expr.Any {
	return hasInterface(expr.MetaKeyIIFNAME, name, equal)
}
func outputInterface(name string, equal bool) []expr.Any {
	return hasInterface(expr.MetaKeyOIFNAME, name, equal)
}

func hasInterface(key expr.MetaKey, name string, equal bool) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: compareOp(equal), Register: 1, Data: interfaceKey(name)},
	}
}

func compareOp(equal bool) expr.CmpOp {
	if equal {
		return expr.CmpOpEq
	}
	return expr.CmpOpNeq
}

func source(p netip.Prefix, inside bool) []expr.Any {
	return inPrefix(familyOf(p.Addr()).sourceAt, p, inside)
}
func destination(p netip.Prefix, inside bool) []expr.Any {
	return inPrefix(familyOf(p.Addr()).destAt, p, inside)
}

// inPrefix matches packets whose address at the offset of the network header is in the prefix.
func inPrefix(offset uint32, p netip.Prefix, inside bool) []expr.Any {
	size := uint32(p.Addr().BitLen() / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: compareOp(inside), Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// isLocalDestination matches packets to an address of the machine.
func isLocalDestination() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

const portOffset, portSize = 2, 2 // destination port in the headers of TCP and UDP

// isNoOtherAddress matches packets to addresses on which the ports of all addresses are forwarded.
func (b *Bridge) isNoOtherAddress(f family) (parts []expr.Any) {
	for _, address := range b.config.OtherAddresses {
		if familyOf(address).name == f.name {
			parts = append(parts, destination(netip.PrefixFrom(address, address.BitLen()), false)...)
		}
	}
	return parts
}

// toForwardedPort translates the destination of packets to a forwarded port.
func toForwardedPort(table *nftables.Table, f family) []expr.Any {
	set := newPortMap(table, f, false)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Payload{DestRegister: firstRegister + 1, Base: expr.PayloadBaseTransportHeader, Offset: portOffset, Len: portSize},
		&expr.Lookup{SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: firstRegister, RegProtoMin: f.natResults},
	}
}

// toPortOfAddress translates the destination of packets to a port that is forwarded for this destination alone.
func toPortOfAddress(table *nftables.Table, f family) []expr.Any {
	protocol := firstRegister + f.size/4 // after the address
	set := newPortMap(table, f, true)
	return []expr.Any{
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseNetworkHeader, Offset: f.destAt, Len: f.size},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
		&expr.Payload{DestRegister: protocol + 1, Base: expr.PayloadBaseTransportHeader, Offset: portOffset, Len: portSize},
		&expr.Lookup{SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: firstRegister, RegProtoMin: f.natResults},
	}
}

// statusDestinationNAT is the bit of a connection whose destination was translated.
const statusDestinationNAT = 1 << 5

func wasForwarded(yes bool) []expr.Any {
	return hasConnectionBit(expr.CtKeySTATUS, statusDestinationNAT, yes)
}
func isNewConnection() []expr.Any {
	return hasConnectionBit(expr.CtKeySTATE, expr.CtStateBitNEW, true)
}

func hasConnectionBit(key expr.CtKey, bit uint32, set bool) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: compareOp(!set), Register: 1, Data: make([]byte, 4)},
	}
}

func masqueraded() []expr.Any                  { return []expr.Any{&expr.Masq{}} }
func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// protocols are the protocols of forwarded ports.
var protocols = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// element is an element of a map, with the port that it forwards.
type element struct {
	nftables.SetElement
	port Port
}

// newElements returns the elements of a map that forward ports to an address of a namespace: of the ports of one address each,
// or of the others. The comment of an element is the allocation.
func newElements(allocID string, ports []Port, address netip.Addr, ofAddress bool) []element {
	var all []element
	for _, p := range ports {
		if p.HostIP.IsValid() != ofAddress || ofAddress && p.HostIP.BitLen() != address.BitLen() {
			continue
		}
		for _, protocol := range protocols {
			var key []byte
			if ofAddress {
				key = p.HostIP.AsSlice()
			}
			key = append(append(key, protocol, 0, 0, 0), paddedPort(p.HostPort)...)
			all = append(all, element{nftables.SetElement{Key: key, Val: append(address.AsSlice(), paddedPort(p.To)...), Comment: allocID}, p})
		}
	}
	return all
}

// paddedPort returns a port as a part of a concatenated value, which has a multiple of 4 bytes.
func paddedPort(port int) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(port)), 0, 0)
}

// forward lets the namespace of an endpoint send from its addresses, and forwards its ports. Ports that were forwarded to the endpoint before and are not
// among its ports are no longer forwarded.
func (fw *firewall) forward(e Endpoint, status Status) error {
	for _, p := range e.Ports {
		if p.HostIP.Is6() && !status.Address6.IsValid() {
			return fmt.Errorf("port %q: its host network has the IPv6 address %s, and the namespace has none: set bridge_network_subnet_ipv6, or cidr of the host network", p.Label, p.HostIP)
		}
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	sources := sourceElements(e.AllocID, status)
	for i, set := range sourceSets(fw.sources) {
		if _, err := replaceElements(c, set, e.AllocID, sources[i]); err != nil {
			return err
		}
	}
	isNew := false
	for _, address := range []netip.Addr{status.Address, status.Address6} {
		if !address.IsValid() {
			continue
		}
		for _, ofAddress := range []bool{false, true} {
			added := newElements(e.AllocID, e.Ports, address, ofAddress)
			changed, err := replaceElements(c, newPortMap(fw.table, familyOf(address), ofAddress), e.AllocID, added)
			if err != nil {
				return err
			}
			isNew = isNew || changed
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: forward ports: %w", err)
	}
	if !isNew {
		return nil
	}
	return deleteUnforwarded(e.Ports)
}

// replaceElements replaces the elements of an allocation in a map with others. It reports whether one of them is new.
func replaceElements(c *nftables.Conn, set *nftables.Set, allocID string, added []element) (isNew bool, err error) {
	existing, err := c.GetSetElements(set)
	if err != nil {
		return false, fmt.Errorf("nftables: list forwarded ports: %w", err)
	}
	obsolete, err := checkOwners(allocID, added, existing)
	if err != nil {
		return false, err
	}
	if len(obsolete) > 0 {
		if err := c.SetDeleteElements(set, obsolete); err != nil {
			return false, fmt.Errorf("nftables: %w", err)
		}
	}
	var elements []nftables.SetElement
	for _, a := range added {
		elements = append(elements, a.SetElement)
		isNew = isNew || !slices.ContainsFunc(existing, func(e nftables.SetElement) bool {
			return bytes.Equal(e.Key, a.Key) && bytes.Equal(e.Val, a.Val)
		})
	}
	if len(elements) == 0 {
		return false, nil
	}
	if err := c.SetAddElements(set, elements); err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	return isNew, nil
}

// checkOwners returns the elements that must be removed before others are added: those of the allocation, and those of an
// allocation whose interface no longer exists and that has the key of an added element. It returns an error if a port is
// forwarded to another allocation.
func checkOwners(allocID string, added []element, existing []nftables.SetElement) (obsolete []nftables.SetElement, err error) {
	for _, other := range existing {
		if other.Comment == allocID {
			obsolete = append(obsolete, other)
			continue
		}
		i := slices.IndexFunc(added, func(e element) bool { return bytes.Equal(e.Key, other.Key) })
		if i < 0 {
			continue
		}
		link, err := findLink(hostInterface(other.Comment))
		if err != nil {
			return nil, err
		}
		if link != nil {
			return nil, &PortInUseError{Label: added[i].port.Label, AllocID: other.Comment, Port: added[i].port.HostPort}
		}
		obsolete = append(obsolete, other)
	}
	return obsolete, nil
}

// unforward removes the forwarded ports of allocations, and what they may send from, in one transaction.
func (b *Bridge) unforward(allocIDs map[string]bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	ports, sources := newTable(b.config.Name), newSourceTable(b.config.Name)
	if err := deleteElements(c, ports, portMaps(ports), allocIDs); err != nil {
		return err
	}
	if err := deleteElements(c, sources, sourceSets(sources), allocIDs); err != nil {
		return err
	}
	return c.Flush()
}

// deleteElements deletes the elements of allocations in the sets of a table. It does nothing if there is no table.
func deleteElements(c *nftables.Conn, table *nftables.Table, sets []*nftables.Set, allocIDs map[string]bool) error {
	// The errors of the library do not wrap ENOENT.
	tables, err := c.ListTablesOfFamily(table.Family)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name }) {
		return nil
	}
	for _, set := range sets {
		existing, err := c.GetSetElements(set)
		if err != nil {
			return err
		}
		var own []nftables.SetElement
		for _, element := range existing {
			if allocIDs[element.Comment] {
				own = append(own, element)
			}
		}
		if len(own) == 0 {
			continue
		}
		if err := c.SetDeleteElements(set, own); err != nil {
			return err
		}
	}
	return nil
}

// deleteTables deletes the tables of a bridge. It does nothing if there are none.
func deleteTables(bridge string) error {
	var errs []error
	for _, table := range []*nftables.Table{newTable(bridge), newSourceTable(bridge)} {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		c.DelTable(table)
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("nftables: delete table %s: %w", table.Name, err))
		}
	}
	return errors.Join(errs...)
}
