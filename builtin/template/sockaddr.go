package template

import (
	"fmt"
	"net"
	"strings"
)

// sockaddr answers the expressions with which people look for an address of the
// machine.
func sockaddr(expression string) (string, error) {
	name, args, _ := strings.Cut(strings.Trim(strings.TrimSpace(expression), "{} "), " ")
	var keep func(net.Interface, net.IP) bool
	switch name {
	case "GetPrivateIP", "GetPrivateIPs":
		keep = func(_ net.Interface, ip net.IP) bool { return ip.IsPrivate() }
	case "GetPublicIP", "GetPublicIPs":
		keep = func(_ net.Interface, ip net.IP) bool { return ip.IsGlobalUnicast() && !ip.IsPrivate() }
	case "GetInterfaceIP", "GetInterfaceIPs":
		wanted := strings.Trim(strings.TrimSpace(args), "\"`")
		keep = func(i net.Interface, _ net.IP) bool { return i.Name == wanted }
	default:
		return "", fmt.Errorf("sockaddr: %q is not supported: use GetPrivateIP, GetPublicIP or GetInterfaceIP NAME, or attr.unique.network.ip-address of env", name)
	}
	found, err := addresses(keep)
	if err != nil || len(found) == 0 {
		return "", err
	}
	if strings.HasSuffix(name, "s") {
		return strings.Join(found, " "), nil
	}
	return found[0], nil
}

// addresses lists those of the interfaces that are up, IPv4 first.
func addresses(keep func(net.Interface, net.IP) bool) ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var four, six []string
	for _, i := range interfaces {
		all, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue
		}
		for _, a := range all {
			n, ok := a.(*net.IPNet)
			switch {
			case !ok || !keep(i, n.IP):
			case n.IP.To4() != nil:
				four = append(four, n.IP.String())
			default:
				six = append(six, n.IP.String())
			}
		}
	}
	return append(four, six...), nil
}
