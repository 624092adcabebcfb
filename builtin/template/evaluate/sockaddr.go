package evaluate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/go-sockaddr"
	socktmpl "github.com/hashicorp/go-sockaddr/template"
)

// replaceRouteFuncs replaces those functions of go-sockaddr that start the program ip to find the interface of the default
// route: an evaluation can start no program.
var replaceRouteFuncs = sync.OnceFunc(func() {
	first := func(list func() (sockaddr.IfAddrs, error)) func() (string, error) {
		return func() (string, error) {
			addrs, err := list()
			if err != nil || len(addrs) == 0 {
				return "", err
			}
			return (*sockaddr.ToIPAddr(addrs[0].SockAddr)).NetIP().String(), nil
		}
	}
	socktmpl.SourceFuncs["GetDefaultInterfaces"] = defaultInterfaces
	socktmpl.SourceFuncs["GetPrivateInterfaces"] = privateInterfaces
	socktmpl.SourceFuncs["GetPublicInterfaces"] = publicInterfaces
	socktmpl.HelperFuncs["GetPrivateIP"] = first(privateInterfaces)
	socktmpl.HelperFuncs["GetPublicIP"] = first(publicInterfaces)
	socktmpl.SortFuncs["sort"] = sortInterfaces
})

// evaluateSockaddr evaluates an expression of go-sockaddr, such as GetAllInterfaces | include "name" "^eth" | attr "address".
func evaluateSockaddr(words ...string) (string, error) {
	replaceRouteFuncs()
	return socktmpl.Parse(fmt.Sprintf("{{ %s }}", strings.Join(words, " ")))
}

func defaultInterfaces() (sockaddr.IfAddrs, error) {
	name, err := defaultInterfaceName()
	if err != nil {
		return nil, err
	}
	all, err := sockaddr.GetAllInterfaces()
	var list sockaddr.IfAddrs
	for _, a := range all {
		if a.Name == name {
			list = append(list, a)
		}
	}
	return list, err
}

func privateInterfaces() (sockaddr.IfAddrs, error) {
	private, _, err := forwardableInterfaces()
	return private, err
}

func publicInterfaces() (sockaddr.IfAddrs, error) {
	_, public, err := forwardableInterfaces()
	return public, err
}

// forwardableInterfaces lists the forwardable addresses of active interfaces: private ones, which RFC 6890 reserves, and public ones.
// Both lists start with the addresses of the default route's interface.
func forwardableInterfaces() (private, public sockaddr.IfAddrs, err error) {
	all, err := sockaddr.GetAllInterfaces()
	if err != nil {
		return nil, nil, err
	}
	all, _ = sockaddr.FilterIfByType(all, sockaddr.TypeIP)
	for _, flag := range []string{"forwardable", "up"} {
		if all, _, err = sockaddr.IfByFlag(flag, all); err != nil {
			return nil, nil, err
		}
	}
	sockaddr.OrderedIfAddrBy(newDefaultRouteOrder(), sockaddr.AscIfType, sockaddr.AscIfNetworkSize).Sort(all)
	return sockaddr.IfByRFC("6890", all)
}

// newDefaultRouteOrder returns sockaddr.AscIfDefault for the current default route.
func newDefaultRouteOrder() sockaddr.CmpIfAddrFunc {
	name, err := defaultInterfaceName()
	return func(a, b *sockaddr.IfAddr) int {
		isDefaultA, isDefaultB := a.Interface.Name == name, b.Interface.Name == name
		switch {
		case err != nil || isDefaultA == isDefaultB:
			return 0
		case isDefaultA:
			return -1
		}
		return 1
	}
}

// sortInterfaces is sockaddr.SortIfBy, with the default route from netlink.
func sortInterfaces(selectors string, addrs sockaddr.IfAddrs) (sockaddr.IfAddrs, error) {
	ascending := map[string]sockaddr.CmpIfAddrFunc{
		"address": sockaddr.AscIfAddress, "name": sockaddr.AscIfName, "port": sockaddr.AscIfPort, "private": sockaddr.AscIfPrivate,
		"size": sockaddr.AscIfNetworkSize, "type": sockaddr.AscIfType, "default": newDefaultRouteOrder(),
	}
	var order []sockaddr.CmpIfAddrFunc
	for clause := range strings.SplitSeq(selectors, ",") {
		selector := strings.TrimSpace(strings.ToLower(clause))
		name, isDescending := strings.CutPrefix(selector, "-")
		if !isDescending {
			name = strings.TrimPrefix(selector, "+")
		}
		compare := ascending[name]
		if compare == nil {
			return sockaddr.IfAddrs{}, fmt.Errorf("unknown sort type: %q", clause)
		}
		if isDescending {
			order = append(order, func(a, b *sockaddr.IfAddr) int { return -compare(a, b) })
			continue
		}
		order = append(order, compare)
	}
	sorted := append(sockaddr.IfAddrs(nil), addrs...)
	sockaddr.OrderedIfAddrBy(order...).Sort(sorted)
	return sorted, nil
}

// defaultInterfaceName returns the name of the interface with the first IPv4 default route that has a gateway, as the program
// ip lists them.
func defaultInterfaceName() (string, error) {
	table, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_INET)
	if err != nil {
		return "", err
	}
	messages, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return "", err
	}
	for _, m := range messages {
		// Data[1] is the length of the destination's prefix, Data[4] the table: see struct rtmsg in rtnetlink(7).
		if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg || m.Data[1] != 0 || m.Data[4] != syscall.RT_TABLE_MAIN {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return "", err
		}
		index, hasGateway := 0, false
		for _, a := range attrs {
			switch {
			case a.Attr.Type == syscall.RTA_OIF && len(a.Value) == 4:
				index = int(binary.NativeEndian.Uint32(a.Value))
			case a.Attr.Type == syscall.RTA_GATEWAY:
				hasGateway = true
			}
		}
		if hasGateway && index != 0 {
			i, err := net.InterfaceByIndex(index)
			if err != nil {
				return "", err
			}
			return i.Name, nil
		}
	}
	//lint:ignore ST1005 the words of go-sockaddr
	return "", errors.New("No default interface found")
}
