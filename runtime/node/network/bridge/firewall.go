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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// firewallTables has a bridge's two nftables tables.
type firewallTables struct {
	portForwardingTable *nftables.Table // forwards ports and masquerades; newPortForwardingTable returns it
	sourceCheckTable    *nftables.Table // checks namespaces' source addresses; newSourceCheckTable returns it

	// The rules depend on the next two values.
	subnets           []netip.Prefix
	forwardsLoopback6 bool

	// elements has the elements of the sets that were read.
	elements map[setID][]nftables.SetElement

	// generation is the ruleset's generation id after the last transaction of ensureFirewall or writeElements. The tables are as
	// written, and elements are the kernel's, as long as the kernel has this id. 0 means unknown.
	generation uint32
}

// setID identifies a set or map in one of a bridge's two tables, which have different families.
type setID struct {
	family nftables.TableFamily
	name   string
}

// nftablesTableName returns the name of both of a bridge's tables.
func nftablesTableName(bridgeName string) string { return "nomad-lite-" + bridgeName }

// newPortForwardingTable returns the table that forwards ports and masquerades.
func newPortForwardingTable(bridgeName string) *nftables.Table {
	return &nftables.Table{Name: nftablesTableName(bridgeName), Family: nftables.TableFamilyINet}
}

// ipFamily has the rule parts that differ between IPv4 and IPv6.
type ipFamily struct {
	setNameSuffix            string               // set name suffix
	nfProtocolNumber         byte                 // family number in nftables and in netlink
	addressType              nftables.SetDatatype // address type
	addressSizeBytes         uint32               // bytes in an address
	sourceAddressOffset      uint32               // source address offset in a packet's header
	destinationAddressOffset uint32               // destination address offset in a packet's header
	natPortRegister          uint32               // register with the port after a port map lookup: behind the address
	loopbackPrefix           netip.Prefix         // loopback addresses
}

var loopback4, loopback6 = netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")

var families = []ipFamily{
	{"4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 4, 12, 16, firstRegister + 1, loopback4},
	{"6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 16, 8, 24, firstRegister + 4, loopback6},
}

// firstRegister is the first of nftables' registers of 4 bytes. The parts of a map lookup key are in consecutive registers.
const firstRegister = unix.NFT_REG32_00

func ipFamilyOf(address netip.Addr) ipFamily {
	if address.Is4() {
		return families[0]
	}
	return families[1]
}

// newPortMap returns a family's map for forwarded ports, with namespace address and port as values. With withHostIP it is the
// map for ports with HostIP, and the keys start with this address; otherwise the map for the other ports.
func newPortMap(table *nftables.Table, f ipFamily, withHostIP bool) *nftables.Set {
	name, key := "ports"+f.setNameSuffix, []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	if withHostIP {
		name, key = "addressports"+f.setNameSuffix, append([]nftables.SetDatatype{f.addressType}, key...)
	}
	return &nftables.Set{
		Table: table, Name: name, IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(key...),
		DataType: nftables.MustConcatSetType(f.addressType, nftables.TypeInetService),
	}
}

// allPortMaps returns all forwarded port maps.
func allPortMaps(table *nftables.Table) (sets []*nftables.Set) {
	for _, f := range families {
		sets = append(sets, newPortMap(table, f, false), newPortMap(table, f, true))
	}
	return sets
}

// ensureFirewall sets b.firewall: it writes the bridge's tables, except the forwarded ports, in one transaction, unless they are as this Bridge has
// written them. Existing connections are not interrupted.
func (b *Bridge) ensureFirewall(device *netlink.Bridge) error {
	subnets, err := subnetsOfDevice(device)
	if err != nil {
		return err
	}
	forwardsLoopback6, before := b.canForwardLoopback6(), rulesetGeneration()
	if f := b.firewall; f != nil && f.generation != 0 && f.generation == before && f.forwardsLoopback6 == forwardsLoopback6 && slices.Equal(f.subnets, subnets) {
		return nil
	}
	b.firewall = nil
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := c.AddTable(newPortForwardingTable(b.config.Name))
	for _, set := range allPortMaps(table) {
		if err := c.AddSet(set, nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	for _, chain := range b.newPortForwardingChains(table, subnets, forwardsLoopback6) {
		c.AddChain(chain.Chain)
		c.FlushChain(chain.Chain)
		for _, rule := range chain.ruleExprs {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain.Chain, Exprs: rule})
		}
	}
	if err := b.ensureSourceCheckTable(c, device); err != nil {
		return err
	}
	opcount.Count(opcount.Netlink)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables: write the tables %s: %w", table.Name, err)
	}
	if err := b.ensureIptablesForwardAcceptRules(); err != nil {
		return err
	}
	b.firewall = &firewallTables{
		portForwardingTable: table, sourceCheckTable: newSourceCheckTable(b.config.Name),
		subnets: subnets, forwardsLoopback6: forwardsLoopback6, elements: map[setID][]nftables.SetElement{},
	}
	b.firewall.setGenerationAfter(before)
	return nil
}

// setGenerationAfter sets the generation after a transaction, before which it was before. If another program has changed the
// ruleset meanwhile, the generation is unknown.
func (f *firewallTables) setGenerationAfter(before uint32) {
	f.generation = 0
	if now := rulesetGeneration(); before != 0 && now == before+1 {
		f.generation = now
	}
}

// rulesetGeneration returns the generation id of the machine's nftables ruleset, which each transaction of any program increments;
// 0 if it cannot be read.
func rulesetGeneration() uint32 {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	opcount.Count(opcount.Netlink)
	answers, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil || len(answers) != 1 || len(answers[0]) < nfgenmsgSize {
		return 0
	}
	id := uint32(0)
	_ = forEachNetlinkAttribute(answers[0][nfgenmsgSize:], func(kind uint16, value []byte) error {
		if kind == unix.NFTA_GEN_ID && len(value) == 4 {
			id = binary.BigEndian.Uint32(value)
		}
		return nil
	})
	return id
}

// subnetsOfDevice returns the subnets of a bridge's addresses. They include an earlier configuration's subnets while its
// namespaces are connected.
func subnetsOfDevice(device *netlink.Bridge) ([]netip.Prefix, error) {
	opcount.Count(opcount.Netlink)
	addresses, err := retryInterruptedDump(func() ([]netlink.Addr, error) { return netlink.AddrList(device, netlink.FAMILY_ALL) })
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

type chainWithRules struct {
	*nftables.Chain
	ruleExprs [][]expr.Any
}

// joinExprs joins matches and actions to one rule's expressions.
func joinExprs(parts ...[]expr.Any) (joined []expr.Any) {
	for _, part := range parts {
		joined = append(joined, part...)
	}
	return joined
}

// newPortForwardingChains returns the chains in the table from newPortForwardingTable. DESIGN.md shows them in nft's
// language.
func (b *Bridge) newPortForwardingChains(table *nftables.Table, namespaceSubnets []netip.Prefix, forwardsLoopback6 bool) []chainWithRules {
	name := b.config.Name
	newChain := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, kind nftables.ChainType, rules ...[]expr.Any) chainWithRules {
		return chainWithRules{&nftables.Chain{Name: name, Table: table, Hooknum: hook, Priority: &priority, Type: kind}, rules}
	}
	var incoming, local, masquerade [][]expr.Any
	for _, f := range families {
		ofAddress := joinExprs(matchFamily(f), matchLocalDestination(), translateToForwardedPortOfHostIP(table, f))
		forward := joinExprs(b.matchNotHostIPOnlyDestination(f), matchLocalDestination(), translateToForwardedPort(table, f))
		incoming = append(incoming, ofAddress, joinExprs(matchFamily(f), forward))
		if f.loopbackPrefix == loopback6 && !forwardsLoopback6 {
			forward = joinExprs(matchDestination(loopback6, false), forward) // the connection to ::1 is refused at once, instead of timing out
		}
		local = append(local, ofAddress, joinExprs(matchFamily(f), forward))
		masquerade = append(masquerade, joinExprs(matchFamily(f), matchSource(f.loopbackPrefix, true), matchOutputInterface(name, true), masqueradeAction()))
	}
	for _, p := range namespaceSubnets {
		f := ipFamilyOf(p.Addr())
		masquerade = append(masquerade,
			joinExprs(matchFamily(f), matchSource(p, true), matchOutputInterface(name, false), masqueradeAction()),
			// If a namespace connects to a port forwarded to its own subnet, the replies must come from the machine, where the
			// namespace has sent the request.
			joinExprs(matchFamily(f), matchSource(p, true), matchDestination(p, true), matchForwarded(true), masqueradeAction()))
	}
	return []chainWithRules{
		newChain("raw", nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, nftables.ChainTypeFilter,
			joinExprs(matchFamily(families[0]), matchInputInterface(name, true), matchDestination(loopback4, true), verdictAction(expr.VerdictDrop))),
		newChain("prerouting", nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, incoming...),
		newChain("output", nftables.ChainHookOutput, *nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, local...),
		newChain("postrouting", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, masquerade...),
		newChain("forward", nftables.ChainHookForward, *nftables.ChainPriorityFilter, nftables.ChainTypeFilter,
			joinExprs(matchOutputInterface(name, true), matchInputInterface(name, false), matchNewConnection(), matchForwarded(false), verdictAction(expr.VerdictDrop))),
	}
}

// matchFamily matches IPv4 or IPv6 packets.
func matchFamily(f ipFamily) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.nfProtocolNumber}},
	}
}

func matchInputInterface(name string, isEqual bool) []expr.Any {
	return matchInterface(expr.MetaKeyIIFNAME, name, isEqual)
}
func matchOutputInterface(name string, isEqual bool) []expr.Any {
	return matchInterface(expr.MetaKeyOIFNAME, name, isEqual)
}

// matchInterface matches packets if the input or output interface has the name, or with isEqual false, another name.
func matchInterface(key expr.MetaKey, name string, isEqual bool) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: equalityOp(isEqual), Register: 1, Data: paddedInterfaceName(name)},
	}
}

func equalityOp(isEqual bool) expr.CmpOp {
	if isEqual {
		return expr.CmpOpEq
	}
	return expr.CmpOpNeq
}

func matchSource(p netip.Prefix, isInside bool) []expr.Any {
	return matchPrefix(ipFamilyOf(p.Addr()).sourceAddressOffset, p, isInside)
}
func matchDestination(p netip.Prefix, isInside bool) []expr.Any {
	return matchPrefix(ipFamilyOf(p.Addr()).destinationAddressOffset, p, isInside)
}

// matchPrefix matches packets if the address at an offset in the network header is in the prefix, or with isInside false, is
// not in it.
func matchPrefix(offset uint32, p netip.Prefix, isInside bool) []expr.Any {
	size := uint32(p.Addr().BitLen() / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size)},
		&expr.Cmp{Op: equalityOp(isInside), Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// matchLocalDestination matches packets to a machine address.
func matchLocalDestination() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

const destinationPortOffset, destinationPortSize = 2, 2 // destination port in TCP and UDP headers

// matchNotHostIPOnlyDestination matches packets unless they are to one of Config.AddressesForwardingOnlyHostIPPorts.
func (b *Bridge) matchNotHostIPOnlyDestination(f ipFamily) (parts []expr.Any) {
	for _, address := range b.config.AddressesForwardingOnlyHostIPPorts {
		if ipFamilyOf(address).setNameSuffix == f.setNameSuffix {
			parts = append(parts, matchDestination(netip.PrefixFrom(address, address.BitLen()), false)...)
		}
	}
	return parts
}

// translateToForwardedPort translates the packets' destination to a forwarded port without HostIP.
func translateToForwardedPort(table *nftables.Table, f ipFamily) []expr.Any {
	set := newPortMap(table, f, false)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Payload{DestRegister: firstRegister + 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPortOffset, Len: destinationPortSize},
		&expr.Lookup{SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfProtocolNumber), RegAddrMin: firstRegister, RegProtoMin: f.natPortRegister},
	}
}

// translateToForwardedPortOfHostIP translates the packets' destination to a forwarded port with the destination as HostIP.
func translateToForwardedPortOfHostIP(table *nftables.Table, f ipFamily) []expr.Any {
	protocol := firstRegister + f.addressSizeBytes/4 // the register after the address
	set := newPortMap(table, f, true)
	return []expr.Any{
		&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseNetworkHeader, Offset: f.destinationAddressOffset, Len: f.addressSizeBytes},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
		&expr.Payload{DestRegister: protocol + 1, Base: expr.PayloadBaseTransportHeader, Offset: destinationPortOffset, Len: destinationPortSize},
		&expr.Lookup{SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfProtocolNumber), RegAddrMin: firstRegister, RegProtoMin: f.natPortRegister},
	}
}

// statusDestinationNAT is IPS_DST_NAT: the status bit of a connection with a translated destination.
const statusDestinationNAT = 1 << 5

// matchForwarded matches packets in connections to a forwarded port, or with isForwarded false, in other connections.
func matchForwarded(isForwarded bool) []expr.Any {
	return matchConnectionBit(expr.CtKeySTATUS, statusDestinationNAT, isForwarded)
}
func matchNewConnection() []expr.Any {
	return matchConnectionBit(expr.CtKeySTATE, expr.CtStateBitNEW, true)
}

// matchConnectionBit matches packets if their connection's state or status has, or has not, a bit set.
func matchConnectionBit(key expr.CtKey, bit uint32, isSet bool) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: equalityOp(!isSet), Register: 1, Data: make([]byte, 4)},
	}
}

func masqueradeAction() []expr.Any                   { return []expr.Any{&expr.Masq{}} }
func verdictAction(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// forwardedProtocols are the protocols for forwarded ports.
var forwardedProtocols = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}

// setElement is an element in a set or a port map.
type setElement struct {
	nftables.SetElement
	port ForwardedPort // port forwarded by a port map element
}

// newPortElements returns the elements in newPortMap(…, withHostIP) that forward ports to a namespace address. Each element's
// comment is the allocation ID.
func newPortElements(allocID string, ports []ForwardedPort, address netip.Addr, withHostIP bool) []setElement {
	var all []setElement
	for _, p := range ports {
		if p.HostIP.IsValid() != withHostIP || withHostIP && p.HostIP.BitLen() != address.BitLen() {
			continue
		}
		for _, protocol := range forwardedProtocols {
			var key []byte
			if withHostIP {
				key = p.HostIP.AsSlice()
			}
			key = append(append(key, protocol, 0, 0, 0), paddedPort(p.HostPort)...)
			all = append(all, setElement{nftables.SetElement{Key: key, Val: append(address.AsSlice(), paddedPort(p.NamespacePort)...), Comment: allocID}, p})
		}
	}
	return all
}

// paddedPort returns a port as a part of a concatenated key or value: each part is padded to a multiple of 4 bytes.
func paddedPort(port int) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(port)), 0, 0)
}

// maxWrittenTogether limits the connections in a transaction. The kernel acknowledges each message, and the acknowledgements of about
// 250 fill the buffer of the netlink socket.
const maxWrittenTogether = 16

// permitSourcesAndForwardPorts writes the addresses of connections without an error to the source check table, so that their
// namespaces may send from them, and forwards their ports. It stops forwarding to an allocation any port not among the endpoint's
// ports. It sets the errors of connections that fail.
//
// If a transaction fails, another program may have removed the tables meanwhile: they are written again. Then each connection has a
// transaction of its own, so that the elements of one do not fail the others.
func (b *Bridge) permitSourcesAndForwardPorts(device *netlink.Bridge, connections []*connection) {
	connections = slices.DeleteFunc(slices.Clone(connections), func(c *connection) bool { return c.err != nil })
	for together := range slices.Chunk(connections, maxWrittenTogether) {
		if b.firewall != nil && b.firewall.writeElements(together) == nil { // nil after an error of ensureFirewall
			continue
		}
		for _, c := range together {
			err := b.ensureFirewall(device)
			if err == nil {
				err = b.firewall.writeElements([]*connection{c})
			}
			if err != nil {
				c.err = err
			}
		}
	}
	var newPorts []ForwardedPort
	for _, c := range connections {
		if c.err == nil && c.hasNewPorts {
			newPorts = append(newPorts, c.Ports...)
		}
	}
	if len(newPorts) == 0 {
		return
	}
	if err := deleteUnforwardedUDPConnections(newPorts); err != nil {
		for _, c := range connections {
			if c.err == nil && c.hasNewPorts {
				c.err = err
			}
		}
	}
}

// writeElements writes the connections' elements in one transaction, and sets the errors of connections whose ports cannot be
// forwarded. If it returns an error, it has set no errors, and the tables are unknown.
func (f *firewallTables) writeElements(connections []*connection) error {
	before := f.generation
	f.generation = 0
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	errs, hasChanges := make([]error, len(connections)), false
	for i, c := range connections {
		changes, err := f.planElements(conn, c)
		if inUse := new(PortInUseError); errors.As(err, &inUse) || errors.Is(err, errNoIPv6Address) {
			errs[i] = err
			continue
		} else if err != nil {
			return err
		}
		for _, change := range changes {
			hasChanges, c.hasNewPorts = true, c.hasNewPorts || change.hasNewPort
			if err := f.queue(conn, change); err != nil {
				return fmt.Errorf("nftables: %w", err)
			}
		}
	}
	if hasChanges {
		opcount.Count(opcount.Netlink)
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("nftables: forward ports: %w", err)
		}
		f.setGenerationAfter(before)
	} else {
		f.generation = before
	}
	for i, c := range connections {
		c.err = errs[i]
	}
	return nil
}

// errNoIPv6Address: a port of an IPv6 address of the machine cannot be forwarded to a namespace without an IPv6 address.
var errNoIPv6Address = errors.New("the namespace has none: set bridge_network_subnet_ipv6, or cidr of the host network")

// elementChange replaces elements of a set.
type elementChange struct {
	set             *nftables.Set
	obsolete, added []nftables.SetElement
	hasNewPort      bool // the set is a port map, and an added element was not in it before
}

// planElements returns the changes after which the sets have a connection's elements. The error is a [*PortInUseError] if a port
// is forwarded to another allocation.
func (f *firewallTables) planElements(conn *nftables.Conn, c *connection) (changes []elementChange, err error) {
	for _, p := range c.Ports {
		if p.HostIP.Is6() && !c.status.IPv6Address.IsValid() {
			return nil, fmt.Errorf("port %q: its host network has the IPv6 address %s, and %w", p.Label, p.HostIP, errNoIPv6Address)
		}
	}
	plan := func(set *nftables.Set, wanted []setElement, isPortMap bool) error {
		change, err := f.planElementsOfSet(conn, set, c.AllocID, wanted)
		if err == nil && change != nil {
			change.hasNewPort = change.hasNewPort && isPortMap
			changes = append(changes, *change)
		}
		return err
	}
	sources := sourceCheckElementsBySet(c.AllocID, c.status)
	for i, set := range sourceCheckSets(f.sourceCheckTable) {
		if err := plan(set, sources[i], false); err != nil {
			return nil, err
		}
	}
	for _, address := range []netip.Addr{c.status.IPv4Address, c.status.IPv6Address} {
		if !address.IsValid() {
			continue
		}
		for _, withHostIP := range []bool{false, true} {
			wanted := newPortElements(c.AllocID, c.Ports, address, withHostIP)
			if err := plan(newPortMap(f.portForwardingTable, ipFamilyOf(address), withHostIP), wanted, true); err != nil {
				return nil, err
			}
		}
	}
	return changes, nil
}

// planElementsOfSet returns the change after which an allocation's elements in a set are those wanted; nil if they are.
func (f *firewallTables) planElementsOfSet(conn *nftables.Conn, set *nftables.Set, allocID string, wanted []setElement) (*elementChange, error) {
	existing, err := f.elementsOf(conn, set)
	if err != nil {
		return nil, err
	}
	obsolete, err := findElementsToReplace(allocID, wanted, existing)
	if err != nil {
		return nil, err
	}
	change := &elementChange{set: set, obsolete: obsolete}
	for _, a := range wanted {
		if slices.ContainsFunc(change.added, func(e nftables.SetElement) bool { return bytes.Equal(e.Key, a.Key) }) {
			continue // a port with two labels
		}
		change.added = append(change.added, a.SetElement)
		change.hasNewPort = change.hasNewPort || !slices.ContainsFunc(existing, func(e nftables.SetElement) bool {
			return bytes.Equal(e.Key, a.Key) && bytes.Equal(e.Val, a.Val)
		})
	}
	if !change.hasNewPort && len(obsolete) == len(change.added) && !slices.ContainsFunc(obsolete, func(e nftables.SetElement) bool { return e.Comment != allocID }) {
		return nil, nil
	}
	return change, nil
}

// queue adds a change to the next transaction, and to the elements that are known.
func (f *firewallTables) queue(conn *nftables.Conn, change elementChange) error {
	known := f.elements[idOfSet(change.set)]
	if len(change.obsolete) > 0 {
		if err := conn.SetDeleteElements(change.set, change.obsolete); err != nil {
			return err
		}
		known = slices.DeleteFunc(known, func(e nftables.SetElement) bool {
			return slices.ContainsFunc(change.obsolete, func(o nftables.SetElement) bool { return bytes.Equal(o.Key, e.Key) })
		})
	}
	if len(change.added) > 0 {
		if err := conn.SetAddElements(change.set, change.added); err != nil {
			return err
		}
		known = append(known, change.added...)
	}
	f.elements[idOfSet(change.set)] = known
	return nil
}

func idOfSet(set *nftables.Set) setID { return setID{set.Table.Family, set.Name} }

// elementsOf returns a set's elements, which it reads once.
func (f *firewallTables) elementsOf(c *nftables.Conn, set *nftables.Set) ([]nftables.SetElement, error) {
	if all, ok := f.elements[idOfSet(set)]; ok {
		return all, nil
	}
	opcount.Count(opcount.Netlink)
	all, err := c.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("nftables: list forwarded ports: %w", err)
	}
	f.elements[idOfSet(set)] = all
	return all, nil
}

// findElementsToReplace returns the existing elements to remove before others are added: the allocation's elements, and those
// with an added element's key that belong to an allocation without an interface. It returns a PortInUseError if an allocation
// with an interface has an added element's key.
func findElementsToReplace(allocID string, added []setElement, existing []nftables.SetElement) (obsolete []nftables.SetElement, err error) {
	for _, other := range existing {
		if other.Comment == allocID {
			obsolete = append(obsolete, other)
			continue
		}
		i := slices.IndexFunc(added, func(e setElement) bool { return bytes.Equal(e.Key, other.Key) })
		if i < 0 {
			continue
		}
		link, err := findLink(hostInterfaceName(other.Comment))
		if err != nil {
			return nil, err
		}
		if link != nil {
			return nil, &PortInUseError{Label: added[i].port.Label, OwnerAllocID: other.Comment, HostPort: added[i].port.HostPort}
		}
		obsolete = append(obsolete, other)
	}
	return obsolete, nil
}

// removeAllocsFromFirewall removes allocations' forwarded ports, and the addresses from which they may send, in one
// transaction.
func (b *Bridge) removeAllocsFromFirewall(allocIDs map[string]bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	ports, sources := newPortForwardingTable(b.config.Name), newSourceCheckTable(b.config.Name)
	if err := deleteElementsOfAllocs(c, ports, allPortMaps(ports), allocIDs); err != nil {
		return err
	}
	if err := deleteElementsOfAllocs(c, sources, sourceCheckSets(sources), allocIDs); err != nil {
		return err
	}
	opcount.Count(opcount.Netlink)
	return c.Flush()
}

// deleteElementsOfAllocs deletes the elements of allocations in a table's sets. It does nothing if the table does not exist.
func deleteElementsOfAllocs(c *nftables.Conn, table *nftables.Table, sets []*nftables.Set, allocIDs map[string]bool) error {
	opcount.Count(opcount.Netlink)
	// The library's errors for a missing table do not wrap ENOENT, so its existence is checked.
	tables, err := c.ListTablesOfFamily(table.Family)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name }) {
		return nil
	}
	for _, set := range sets {
		opcount.Count(opcount.Netlink)
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

// deleteNftablesTablesIfExist deletes both of a bridge's tables, if they exist.
func deleteNftablesTablesIfExist(bridgeName string) error {
	var errs []error
	for _, table := range []*nftables.Table{newPortForwardingTable(bridgeName), newSourceCheckTable(bridgeName)} {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		c.DelTable(table)
		opcount.Count(opcount.Netlink)
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("nftables: delete table %s: %w", table.Name, err))
		}
	}
	return errors.Join(errs...)
}
