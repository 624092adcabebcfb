package template

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"text/template/parse"
)

// evaluateSockaddr evaluates an expression of go-sockaddr, such as
//
//	GetAllInterfaces | include "name" "^eth" | include "type" "IPv4" | attr "address"
func evaluateSockaddr(words ...string) (string, error) {
	all, err := listInterfaceAddresses()
	if err != nil {
		return "", err
	}
	return all.evaluateExpression(strings.Join(words, " "))
}

func (l addressList) evaluateExpression(expression string) (string, error) {
	t, err := template.New("sockaddr").Funcs(pureFuncs()).Funcs(l.sockaddrFuncs()).Parse("{{" + strings.Trim(strings.TrimSpace(expression), "{}") + "}}")
	if err != nil {
		return "", err
	}
	// An expression with other template actions, such as range, is rejected, because the
	// executions of their bodies are not counted here.
	if nodes := t.Root.Nodes; len(nodes) != 1 || nodes[0].Type() != parse.NodeAction {
		return "", fmt.Errorf("sockaddr: %q is not one pipeline", expression)
	}
	var out limitedBuffer
	err = t.Execute(&out, l)
	return out.String(), err
}

// interfaceAddress is an IP address of a network interface.
type interfaceAddress struct {
	prefix           netip.Prefix // the address, with the prefix length of its network
	interfaceName    string
	interfaceFlags   net.Flags
	isOnDefaultRoute bool // true if the default route leads through the interface
}

type addressList []*interfaceAddress

// String formats a list of addresses that a template prints.
func (l addressList) String() string {
	text, _ := l.joinAttrs("string", " ")
	return text
}

// listInterfaceAddresses lists the addresses of all interfaces.
func listInterfaceAddresses() (list addressList, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	outward := defaultRouteInterfaceIndex()
	for _, i := range interfaces {
		all, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				list = append(list, &interfaceAddress{p, i.Name, i.Flags, i.Index == outward})
			}
		}
	}
	return list, nil
}

// defaultRouteInterfaceIndex returns the index of the interface with the default route. It
// returns 0 if there is no default route.
func defaultRouteInterfaceIndex() int {
	for _, family := range []int{syscall.AF_INET, syscall.AF_INET6} {
		table, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, family)
		if err != nil {
			continue
		}
		messages, _ := syscall.ParseNetlinkMessage(table)
		for _, m := range messages {
			// A default route has no destination (prefix length Data[1] is 0) and is in the
			// main table (Data[4]): see struct rtmsg in rtnetlink(7).
			if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg || m.Data[1] != 0 || m.Data[4] != syscall.RT_TABLE_MAIN {
				continue
			}
			attrs, _ := syscall.ParseNetlinkRouteAttr(&m)
			for _, a := range attrs {
				if a.Attr.Type == syscall.RTA_OIF && len(a.Value) == 4 {
					return int(binary.NativeEndian.Uint32(a.Value))
				}
			}
		}
	}
	return 0
}

// sockaddrFuncs returns the functions of a sockaddr expression, for a machine with the
// addresses of the list.
func (l addressList) sockaddrFuncs() template.FuncMap {
	listGlobal := func(keep func(*interfaceAddress) bool) addressList {
		list := l.filter(func(a *interfaceAddress) bool { return a.isUp() && a.prefix.Addr().IsGlobalUnicast() && keep(a) })
		return list.sortByKeys("default", "type", "size")
	}
	private := func() addressList {
		return listGlobal(func(a *interfaceAddress) bool { return isRFC6890SpecialPurpose(a.prefix.Addr()) })
	}
	public := func() addressList {
		return listGlobal(func(a *interfaceAddress) bool { return !isRFC6890SpecialPurpose(a.prefix.Addr()) })
	}
	outward := func() addressList { return listGlobal(func(a *interfaceAddress) bool { return a.isOnDefaultRoute }) }
	named := func(name string) addressList {
		return l.filter(func(a *interfaceAddress) bool { return a.isUp() && a.interfaceName == name }).sortByKeys("type")
	}
	first := func(list addressList) string {
		text, _ := list.firstAddresses(1).joinAttrs("address", " ")
		return text
	}
	all := func(list addressList) string { text, _ := list.joinAttrs("address", " "); return text }
	return template.FuncMap{
		"GetAllInterfaces":     func() addressList { return l },
		"GetDefaultInterfaces": outward,
		"GetPrivateInterfaces": private,
		"GetPublicInterfaces":  public,
		"GetPrivateIP":         func() string { return first(private()) },
		"GetPrivateIPs":        func() string { return all(private()) },
		"GetPublicIP":          func() string { return first(public()) },
		"GetPublicIPs":         func() string { return all(public()) },
		"GetInterfaceIP":       func(name string) string { return first(named(name)) },
		"GetInterfaceIPs":      func(name string) string { return all(named(name)) },

		"include": func(by, what string, l addressList) (addressList, error) { return l.selectAddresses(by, what, true) },
		"exclude": func(by, what string, l addressList) (addressList, error) { return l.selectAddresses(by, what, false) },
		"sort":    func(by string, l addressList) (addressList, error) { return l.sortByKeyList(by) },
		"unique":  func(by string, l addressList) (addressList, error) { return l.uniqueByAttr(by) },
		"limit":   func(n int, l addressList) addressList { return l.firstAddresses(n) },
		"offset":  func(n int, l addressList) addressList { return l.skipAddresses(n) },
		"math":    func(on, operand string, l addressList) (addressList, error) { return l.addToAddresses(on, operand) },
		"attr":    func(name string, l addressList) (string, error) { return l.firstAddresses(1).joinAttrs(name, "") },
		"join":    func(name, by string, l addressList) (string, error) { return l.joinAttrs(name, by) },
	}
}

func (l addressList) filter(ok func(*interfaceAddress) bool) addressList {
	return slices.DeleteFunc(slices.Clone(l), func(a *interfaceAddress) bool { return !ok(a) })
}

func (a *interfaceAddress) isUp() bool { return a.interfaceFlags&net.FlagUp != 0 }

func (a *interfaceAddress) ipVersion() string {
	if a.prefix.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// addressFlagConditions maps the names of address flags in selectors to their conditions.
var addressFlagConditions = map[string]func(*interfaceAddress) bool{
	"up":                        (*interfaceAddress).isUp,
	"down":                      func(a *interfaceAddress) bool { return !a.isUp() },
	"broadcast":                 func(a *interfaceAddress) bool { return a.interfaceFlags&net.FlagBroadcast != 0 },
	"multicast":                 func(a *interfaceAddress) bool { return a.interfaceFlags&net.FlagMulticast != 0 },
	"point-to-point":            func(a *interfaceAddress) bool { return a.interfaceFlags&net.FlagPointToPoint != 0 },
	"loopback":                  func(a *interfaceAddress) bool { return a.interfaceFlags&net.FlagLoopback != 0 },
	"forwardable":               func(a *interfaceAddress) bool { return a.prefix.Addr().IsGlobalUnicast() },
	"global unicast":            func(a *interfaceAddress) bool { return a.prefix.Addr().IsGlobalUnicast() },
	"link-local unicast":        func(a *interfaceAddress) bool { return a.prefix.Addr().IsLinkLocalUnicast() },
	"link-local multicast":      func(a *interfaceAddress) bool { return a.prefix.Addr().IsLinkLocalMulticast() },
	"interface-local multicast": func(a *interfaceAddress) bool { return a.prefix.Addr().IsInterfaceLocalMulticast() },
	"unspecified":               func(a *interfaceAddress) bool { return a.prefix.Addr().IsUnspecified() },
}

// rfcNetworks maps the numbers of RFCs to the networks that they define.
var rfcNetworks = sync.OnceValue(func() map[string][]netip.Prefix {
	return map[string][]netip.Prefix{
		"1918": mustParsePrefixes("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"),
		"3927": mustParsePrefixes("169.254.0.0/16"),
		"4193": mustParsePrefixes("fc00::/7"),
		"6598": mustParsePrefixes("100.64.0.0/10"),
		"6890": mustParsePrefixes("0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 " +
			"192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 " +
			"::/128 ::1/128 64:ff9b::/96 ::ffff:0:0/96 100::/64 2001::/23 2001:db8::/32 2002::/16 fc00::/7 fe80::/10"),
	}
})

func mustParsePrefixes(text string) (list []netip.Prefix) {
	for _, word := range strings.Fields(text) {
		list = append(list, netip.MustParsePrefix(word))
	}
	return list
}

func isRFC6890SpecialPurpose(ip netip.Addr) bool { return anyPrefixContains(rfcNetworks()["6890"], ip) }

func anyPrefixContains(list []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// newAddressFilter returns the condition of the functions include and exclude. property is the
// property to compare. wanted is a regular expression for "address" and "name", a prefix length for
// "size", and otherwise a list, separated by |: an address must have all flags of a list of flags,
// and must match one element of any other list.
func newAddressFilter(property, wanted string) (func(*interfaceAddress) bool, error) {
	words := strings.Split(strings.ToLower(wanted), "|")
	switch strings.ToLower(property) {
	case "address", "name":
		re, err := regexp.Compile(wanted)
		if err != nil {
			return nil, err
		}
		return func(a *interfaceAddress) bool {
			if property == "name" {
				return re.MatchString(a.interfaceName)
			}
			return re.MatchString(a.prefix.Addr().String())
		}, nil
	case "flag", "flags":
		for _, word := range words {
			if addressFlagConditions[word] == nil {
				return nil, fmt.Errorf("sockaddr: there is no flag %q, only %s", word, joinSortedKeys(addressFlagConditions))
			}
		}
		return func(a *interfaceAddress) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !addressFlagConditions[word](a) })
		}, nil
	case "network":
		var networks []netip.Prefix
		for _, word := range words {
			p, err := netip.ParsePrefix(word)
			if err != nil {
				return nil, err
			}
			networks = append(networks, p)
		}
		return func(a *interfaceAddress) bool { return anyPrefixContains(networks, a.prefix.Addr()) }, nil
	case "rfc":
		for _, word := range words {
			if rfcNetworks()[word] == nil {
				return nil, fmt.Errorf("sockaddr: the networks of RFC %s are not known; known are %s", word, joinSortedKeys(rfcNetworks()))
			}
		}
		return func(a *interfaceAddress) bool {
			return slices.ContainsFunc(words, func(word string) bool { return anyPrefixContains(rfcNetworks()[word], a.prefix.Addr()) })
		}, nil
	case "size":
		bits, err := strconv.Atoi(strings.TrimPrefix(wanted, "/"))
		return func(a *interfaceAddress) bool { return a.prefix.Bits() == bits }, err
	case "type":
		return func(a *interfaceAddress) bool {
			return slices.ContainsFunc(words, func(word string) bool { return word == "ip" || word == strings.ToLower(a.ipVersion()) })
		}, nil
	}
	return nil, fmt.Errorf("sockaddr: addresses are chosen by address, flags, name, network, rfc, size or type, not by %q", property)
}

func joinSortedKeys[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

func (l addressList) selectAddresses(property, wanted string, include bool) (addressList, error) {
	meant, err := newAddressFilter(property, wanted)
	if err != nil {
		return nil, err
	}
	return l.filter(func(a *interfaceAddress) bool { return meant(a) == include }), nil
}

// compareFuncs maps the sort keys of the function sort to comparisons.
var compareFuncs = map[string]func(a, b *interfaceAddress) int{
	"address": func(a, b *interfaceAddress) int { return a.prefix.Addr().Compare(b.prefix.Addr()) },
	"default": func(a, b *interfaceAddress) int { return compareTrueFirst(a.isOnDefaultRoute, b.isOnDefaultRoute) },
	"name":    func(a, b *interfaceAddress) int { return cmp.Compare(a.interfaceName, b.interfaceName) },
	"private": func(a, b *interfaceAddress) int {
		return compareTrueFirst(isRFC6890SpecialPurpose(a.prefix.Addr()), isRFC6890SpecialPurpose(b.prefix.Addr()))
	},
	"size": func(a, b *interfaceAddress) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) }, // sorts small networks first
	"type": func(a, b *interfaceAddress) int {
		return cmp.Compare(a.prefix.Addr().BitLen(), b.prefix.Addr().BitLen())
	},
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (l addressList) sortByKeyList(keyList string) (addressList, error) {
	keys := strings.Split(keyList, ",")
	for i := range keys {
		keys[i] = strings.TrimSpace(keys[i])
		if compareFuncs[strings.TrimLeft(keys[i], "+-")] == nil {
			return nil, fmt.Errorf("sockaddr: addresses are sorted by %s, not by %q", joinSortedKeys(compareFuncs), keys[i])
		}
	}
	return l.sortByKeys(keys...), nil
}

func (l addressList) sortByKeys(keys ...string) addressList {
	l = slices.Clone(l)
	slices.SortStableFunc(l, func(a, b *interfaceAddress) int {
		for _, key := range keys {
			order := compareFuncs[strings.TrimLeft(key, "+-")](a, b)
			if key[0] == '-' {
				order = -order
			}
			if order != 0 {
				return order
			}
		}
		return 0
	})
	return l
}

func (l addressList) uniqueByAttr(attrName string) (addressList, error) {
	seen := map[string]bool{}
	var attrErr error
	return l.filter(func(a *interfaceAddress) bool {
		text, err := a.formatAttribute(attrName)
		attrErr = cmp.Or(attrErr, err)
		was := seen[text]
		seen[text] = true
		return !was
	}), attrErr
}

func (l addressList) firstAddresses(n int) addressList { return l[:max(0, min(n, len(l)))] }

// skipAddresses removes the first n addresses. If n is negative, it keeps only the
// last -n addresses.
func (l addressList) skipAddresses(n int) addressList {
	if n < 0 {
		n += len(l)
	}
	return l[max(0, min(n, len(l))):]
}

// addToAddresses adds the number operand to each address, or with addressOrNetwork == "network" to the
// first address of its network. For a network, a negative number counts from the end: -1
// is the last address.
func (l addressList) addToAddresses(addressOrNetwork, operand string) (addressList, error) {
	n, err := strconv.ParseInt(operand, 10, 64)
	if err != nil {
		return nil, fmt.Errorf(`sockaddr: %q is no number such as "+5"`, operand)
	}
	l = slices.Clone(l)
	for i, a := range l {
		from := a.prefix.Addr()
		switch addressOrNetwork {
		case "address":
		case "network":
			if from = a.prefix.Masked().Addr(); n < 0 {
				from = a.lastNetworkAddr()
				n++
			}
		default:
			return nil, fmt.Errorf("sockaddr: math is on address or network, not on %q", addressOrNetwork)
		}
		sum := new(big.Int).SetBytes(from.AsSlice())
		bytes := make([]byte, from.BitLen()/8)
		if sum.Add(sum, big.NewInt(n)); sum.Sign() < 0 || sum.BitLen() > from.BitLen() {
			return nil, fmt.Errorf("sockaddr: %v%+d is no address", from, n)
		}
		to, _ := netip.AddrFromSlice(sum.FillBytes(bytes))
		changed := *a // the expression may use the list again
		changed.prefix = netip.PrefixFrom(to, a.prefix.Bits())
		l[i] = &changed
	}
	return l, nil
}

// lastNetworkAddr returns the last address of the network.
func (a *interfaceAddress) lastNetworkAddr() netip.Addr {
	bytes := a.prefix.Masked().Addr().AsSlice()
	for bit := a.prefix.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// formatAttribute returns the text of an attribute, such as "netmask", of an address.
func (a *interfaceAddress) formatAttribute(name string) (string, error) {
	ip := a.prefix.Addr()
	// The first and the last address of an IPv4 network cannot be addresses of
	// hosts.
	first, last := a.prefix.Masked().Addr(), a.lastNetworkAddr()
	if ip.Is4() && a.prefix.Bits() < 31 {
		first, last = first.Next(), last.Prev()
	}
	switch name {
	case "address", "host":
		return ip.String(), nil
	case "name":
		return a.interfaceName, nil
	case "flags":
		return a.interfaceFlags.String(), nil
	case "type":
		return a.ipVersion(), nil
	case "string":
		return a.prefix.String(), nil
	case "network":
		return a.prefix.Masked().Addr().String(), nil
	case "mask_bits":
		return strconv.Itoa(a.prefix.Bits()), nil
	case "netmask":
		return net.IP(net.CIDRMask(a.prefix.Bits(), ip.BitLen())).String(), nil
	case "size":
		return new(big.Int).Lsh(big.NewInt(1), uint(ip.BitLen()-a.prefix.Bits())).String(), nil
	case "first_usable":
		return first.String(), nil
	case "last_usable":
		return last.String(), nil
	}
	return "", fmt.Errorf("sockaddr: an address has no %q: it has address, first_usable, flags, host, last_usable, mask_bits, name, netmask, network, size, string and type", name)
}

func (l addressList) joinAttrs(attrName, separator string) (string, error) {
	var attributeTexts []string
	for _, a := range l {
		text, err := a.formatAttribute(attrName)
		if err != nil {
			return "", err
		}
		attributeTexts = append(attributeTexts, text)
	}
	return strings.Join(attributeTexts, separator), nil
}
