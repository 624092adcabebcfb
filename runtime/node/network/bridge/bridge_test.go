package bridge

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// The test machine has the address machineAddress on a network with another machine, outside, which has no route to the bridge.
const (
	outside         = "outside"
	machineAddress  = "10.99.0.1"
	machineAddress6 = "fd99::1"
	outsideAddress  = "10.99.0.2"
	outsideAddress6 = "fd99::2"
)

var testConfig = Config{Name: "nomad", IPv4Subnet: netip.MustParsePrefix("172.26.64.0/20"), IPv6Subnet: netip.MustParsePrefix("fd00:26:64::/64")}

// setUpMachine creates the test network.
func setUpMachine() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(lo), netns.Create(outside)); err != nil {
		return err
	}
	ns, err := vnetns.GetFromPath(netns.Path(outside))
	if err != nil {
		return err
	}
	defer ns.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "uplink"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}); err != nil {
		return err
	}
	setAddresses := func(name string, addresses ...string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if err := netlink.AddrAdd(link, newNetlinkAddressWithoutDAD(netip.MustParsePrefix(a))); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}
	return errors.Join(
		setAddresses("uplink", machineAddress+"/24", machineAddress6+"/64"),
		netns.Do(netns.Path(outside), func() error { return setAddresses("eth0", outsideAddress+"/24", outsideAddress6+"/64") }),
	)
}

// newEndpoint returns an endpoint with a new namespace. The namespace is disconnected and removed
// when the test has ended.
func newEndpoint(t testing.TB, b *Bridge, id string, ports ...ForwardedPort) Endpoint {
	t.Helper()
	if err := netns.Create(id); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.Detach(id), netns.Remove(id)); err != nil {
			t.Error(err)
		}
	})
	return Endpoint{AllocID: id, NamespacePath: netns.Path(id), Ports: ports}
}

// attach connects a new namespace in which a server answers on TCP and UDP port 8080.
func attach(t testing.TB, b *Bridge, id string, ports ...ForwardedPort) (Endpoint, NamespaceStatus) {
	t.Helper()
	e := newEndpoint(t, b, id, ports...)
	s, err := b.Attach(e)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, id)
	return e, s
}

// serve answers on port 8080 in a namespace with the namespace's name and the client's address.
func serve(t testing.TB, name string) {
	t.Helper()
	err := netns.Do(netns.Path(name), func() error {
		l, err := net.Listen("tcp", ":8080")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					for lines := bufio.NewScanner(c); lines.Scan(); {
						host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
						fmt.Fprintln(c, name, host)
					}
				}()
			}
		}()
		p, err := net.ListenPacket("udp", ":8080")
		if err != nil {
			return err
		}
		t.Cleanup(func() { p.Close() })
		go func() {
			buffer := make([]byte, 100)
			for {
				_, peer, err := p.ReadFrom(buffer)
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(peer.String())
				p.WriteTo([]byte(name+" "+host+"\n"), peer)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// request sends a request from a namespace, "" for the machine, and returns the answer or the error.
func request(from, network, address string) (answer string) {
	call := func() error {
		c, err := net.DialTimeout(network, address, 2*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * time.Second))
		fmt.Fprintln(c, "?")
		answer, err = bufio.NewReader(c).ReadString('\n')
		return err
	}
	err := error(nil)
	if from == "" {
		err = call()
	} else {
		err = netns.Do(netns.Path(from), call)
	}
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

func checkAnswer(t *testing.T, what, from, network, address, want string) {
	t.Helper()
	if got := request(from, network, address); got != want {
		t.Errorf("%s: %s %s from %q: %q, want %q", what, network, address, from, got, want)
	}
}

func checkUnreachable(t *testing.T, what, from, address string) {
	t.Helper()
	if got := request(from, "tcp", address); !strings.Contains(got, "timeout") && !strings.Contains(got, "refused") && !strings.Contains(got, "unreachable") {
		t.Errorf("%s: %s from %q: %q, want no connection", what, address, from, got)
	}
}

func at(address fmt.Stringer, port int) string {
	return net.JoinHostPort(address.String(), strconv.Itoa(port))
}

func TestNamespacesReachEachOther(t *testing.T) {
	b := New(testConfig)
	_, one := attach(t, b, "one")
	_, two := attach(t, b, "two")
	checkAnswer(t, "IPv4", "one", "tcp", at(two.IPv4Address, 8080), "two "+one.IPv4Address.String())
	checkAnswer(t, "IPv6", "two", "tcp", at(one.IPv6Address, 8080), "one "+two.IPv6Address.String())
	checkAnswer(t, "from the machine", "", "tcp", at(one.IPv4Address, 8080), "one 172.26.64.1")
	checkAnswer(t, "from the machine", "", "tcp", at(one.IPv6Address, 8080), "one fd00:26:64::1")
}

func TestForwardedPort(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for connections that time out")
	}
	b := New(testConfig)
	e, one := attach(t, b, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	attach(t, b, "two")
	const gateway, gateway6 = "172.26.64.1", "fd00:26:64::1"
	for _, network := range []string{"tcp", "udp"} {
		checkAnswer(t, "localhost", "", network, "127.0.0.1:80", "one "+gateway)
		checkAnswer(t, "address of the machine", "", network, machineAddress+":80", "one "+machineAddress)
		checkAnswer(t, "another machine", outside, network, machineAddress+":80", "one "+outsideAddress)
		checkAnswer(t, "hairpin", "one", network, machineAddress+":80", "one "+gateway)
		checkAnswer(t, "address of the bridge", "one", network, gateway+":80", "one "+gateway)
		checkAnswer(t, "another namespace", "two", network, machineAddress+":80", "one "+gateway)
		checkAnswer(t, "IPv6", "", network, "["+machineAddress6+"]:80", "one "+machineAddress6)
		checkAnswer(t, "IPv6 from another machine", outside, network, "["+machineAddress6+"]:80", "one "+outsideAddress6)
		checkAnswer(t, "IPv6 hairpin", "one", network, "["+machineAddress6+"]:80", "one "+gateway6)
	}
	checkLoopback6(t, b, e)
	if err := b.Detach("one"); err != nil {
		t.Error(err)
	}
	checkUnreachable(t, "after Detach", "", "127.0.0.1:80")
	checkUnreachable(t, "after Detach", "", at(one.IPv4Address, 8080))
}

// One port number is forwarded to three namespaces: on two addresses, and on all others.
func TestPortOfAddress(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	uplink, err := netlink.LinkByName("uplink")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"10.99.0.8/24", "10.99.0.9/24", "fd99::9/64"} {
		address := newNetlinkAddressWithoutDAD(netip.MustParsePrefix(a))
		if err := netlink.AddrAdd(uplink, address); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := netlink.AddrDel(uplink, address); err != nil {
				t.Error(err)
			}
		})
	}
	b := New(testConfig)
	port := func(address string) ForwardedPort {
		p := ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080}
		p.HostIP, _ = netip.ParseAddr(address) // all addresses without one
		return p
	}
	all, _ := attach(t, b, "all", port(""))
	eight, _ := attach(t, b, "eight", port("10.99.0.8"))
	attach(t, b, "nine", port("10.99.0.9"), port("fd99::9"))
	check := func(eight string) {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			checkAnswer(t, "address of the node", outside, network, machineAddress+":80", "all "+outsideAddress)
			checkAnswer(t, "first address", outside, network, "10.99.0.8:80", eight+" "+outsideAddress)
			checkAnswer(t, "second address", outside, network, "10.99.0.9:80", "nine "+outsideAddress)
			checkAnswer(t, "IPv6 address", outside, network, "[fd99::9]:80", "nine "+outsideAddress6)
			checkAnswer(t, "IPv6 address of the node", outside, network, "["+machineAddress6+"]:80", "all "+outsideAddress6)
			checkAnswer(t, "localhost", "", network, "127.0.0.1:80", "all 172.26.64.1")
			checkAnswer(t, "another namespace", "all", network, "10.99.0.9:80", "nine 172.26.64.1")
		}
	}
	check("eight")
	repair(t, b, eight)
	_, err = b.Attach(newEndpoint(t, b, "late", port("10.99.0.9")))
	if inUse := new(PortInUseError); !errors.As(err, &inUse) || *inUse != (PortInUseError{"http", "nine", 80}) {
		t.Error(err)
	}
	if err := b.Detach("eight"); err != nil {
		t.Error(err)
	}
	check("all")

	// An address that does not forward the ports for all addresses.
	reserved := testConfig
	reserved.AddressesForwardingOnlyHostIPPorts = []netip.Addr{netip.MustParseAddr("10.99.0.8"), netip.MustParseAddr("fd99::9")}
	repair(t, New(reserved), all)
	checkUnreachable(t, "reserved address", outside, "10.99.0.8:80")
	checkUnreachable(t, "reserved address", "", "10.99.0.8:80")
	checkAnswer(t, "address of the node", outside, "tcp", machineAddress+":80", "all "+outsideAddress)
	checkAnswer(t, "second address", outside, "tcp", "10.99.0.9:80", "nine "+outsideAddress)
	checkAnswer(t, "IPv6 address", outside, "tcp", "[fd99::9]:80", "nine "+outsideAddress6)

	without6 := testConfig
	without6.Name, without6.IPv4Subnet, without6.IPv6Subnet = "four", netip.MustParsePrefix("172.27.0.0/24"), netip.Prefix{}
	four := New(without6)
	_, err = four.Attach(newEndpoint(t, four, "four", port("fd99::9")))
	if err == nil || !strings.Contains(err.Error(), "set bridge_network_subnet_ipv6") {
		t.Error(err)
	}
}

// checkLoopback6 checks that a namespace one's port 80 answers on [::1], unless the kernel filters bridged frames: then it
// refuses connections at once.
func checkLoopback6(t *testing.T, b *Bridge, one Endpoint) {
	t.Helper()
	const gateway6 = "fd00:26:64::1"
	setFilter := func(value string) bool {
		err := os.WriteFile(bridgeNetfilterSysctl, []byte(value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		repair(t, b, one) // as every 10 seconds
		return err == nil
	}
	setFilter("0")
	for _, network := range []string{"tcp", "udp"} {
		checkAnswer(t, "localhost", "", network, "[::1]:80", "one "+gateway6)
	}
	// The route that this needs opens neither the machine's own servers on ::1 to namespaces, nor changes where packets to ::1 go.
	server, err := net.Listen("tcp", "[::1]:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if c, err := net.DialTimeout("tcp", "[::1]:8081", time.Second); err != nil {
		t.Error("a server of the machine on ::1:", err)
	} else {
		c.Close()
	}
	command(t, "ip", "-n", "one", "-6", "route", "del", "local", "::1", "dev", "lo", "table", "local")
	command(t, "ip", "-n", "one", "-6", "route", "add", "::1/128", "via", gateway6)
	checkUnreachable(t, "a server of the machine on ::1", "one", "[::1]:8081")

	if !setFilter("1") {
		return
	}
	defer setFilter("0")
	start := time.Now()
	if got := request("", "tcp", "[::1]:80"); !strings.Contains(got, "refused") || time.Since(start) > time.Second {
		t.Errorf("with filtered frames: %s after %s, want refused at once", got, time.Since(start))
	}
}

// A client that sends UDP packets before the port is forwarded, and goes on, reaches the namespace.
func TestForwardedPortOfWaitingClient(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	attach(t, b, "other") // the kernel tracks packets only with a bridge's rules
	clients := map[string]net.Conn{}
	dial := func(from, address string) {
		var err error
		call := func() error {
			clients[from+" "+address], err = net.Dial("udp", address)
			return err
		}
		if from == "" {
			err = call()
		} else {
			err = netns.Do(netns.Path(from), call)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dial("", "127.0.0.1:80")
	dial("", machineAddress+":80")
	dial("other", machineAddress+":80")
	dial(outside, machineAddress+":80")
	dial(outside, "["+machineAddress6+"]:80")
	for _, c := range clients {
		defer c.Close()
		_, _ = c.Write([]byte("?")) // it is refused
	}
	one, _ := attach(t, b, "one", ForwardedPort{Label: "game", HostPort: 80, NamespacePort: 8080})
	for name, c := range clients {
		answer := make([]byte, 100)
		_ = c.SetDeadline(time.Now().Add(2 * time.Second)) // the answer is asserted
		_, _ = c.Read(answer)                              // the first packet's error
		_, _ = c.Write([]byte("?"))
		if n, err := c.Read(answer); !strings.HasPrefix(string(answer[:n]), "one ") {
			t.Errorf("%s: answer %q, %v", name, answer[:n], err)
		}
	}

	// Repair reads the connection tracking table only after it has restored rules.
	dial("", outsideAddress+":80")
	c := clients[" "+outsideAddress+":80"]
	defer c.Close()
	if _, err := c.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if !want {
			command(t, "nft", "flush", "ruleset")
		}
		repair(t, b, one)
		got := false
		err := deleteTrackedConnections(func(c *trackedConnection) bool {
			got = got || isUnforwardedUDPConnection(c, one.Ports)
			return false
		})
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("an entry is there: %t, want %t", got, want)
		}
	}
}

func TestMasquerade(t *testing.T) {
	serve(t, outside)
	attach(t, New(testConfig), "one")
	checkAnswer(t, "IPv4", "one", "tcp", outsideAddress+":8080", outside+" "+machineAddress)
	checkAnswer(t, "IPv6", "one", "tcp", "["+outsideAddress6+"]:8080", outside+" "+machineAddress6)
}

// Another machine that sends packets for a namespace to this machine reaches only forwarded ports.
func TestNamespaceIsUnreachableFromOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for connections that time out")
	}
	_, one := attach(t, New(testConfig), "one")
	command(t, "ip", "-n", outside, "route", "add", "172.26.64.0/20", "via", machineAddress)
	t.Cleanup(func() { command(t, "ip", "-n", outside, "route", "del", "172.26.64.0/20") })
	checkUnreachable(t, "address of a namespace", outside, at(one.IPv4Address, 8080))
}

// A namespace does not reach the machine's servers that listen on 127.0.0.1, although the kernel forwards packets from there.
func TestLoopbackOfMachineIsUnreachable(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	_, one := attach(t, New(testConfig), "one")
	server, err := net.ListenPacket("udp", "127.0.0.1:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	command(t, "ip", "netns", "exec", "one", "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1", "net.ipv4.conf.eth0.route_localnet=1")
	command(t, "ip", "-n", "one", "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local")
	command(t, "ip", "-n", "one", "route", "del", "local", "127.0.0.1", "dev", "lo", "table", "local")
	command(t, "ip", "-n", "one", "route", "add", "127.0.0.1/32", "via", "172.26.64.1", "src", one.IPv4Address.String())
	// The test sends datagrams, because the namespace drops replies from a loopback address.
	err = netns.Do(netns.Path("one"), func() error {
		c, err := net.Dial("udp", "127.0.0.1:8081")
		if err == nil {
			_, err = c.Write([]byte("x"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, peer, err := server.ReadFrom(make([]byte, 1)); err == nil {
		t.Errorf("the machine has received a datagram from %s", peer)
	}
}

func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// machineState returns the machine's interfaces and rules.
func machineState(t testing.TB) string {
	t.Helper()
	links, err := retryInterruptedDump(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ") + "\n" + command(t, "nft", "--stateless", "list", "ruleset")
}

// Docker's rules, which drop by an iptables policy, are not changed, and namespaces' packets pass nevertheless.
func TestDockerDropsForwardedPackets(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	for _, chain := range []string{"FORWARD", "DOCKER-USER"} {
		t.Run(chain, func(t *testing.T) {
			b := New(testConfig)
			for _, iptables := range []string{"iptables", "ip6tables"} {
				command(t, iptables, "-P", "FORWARD", "DROP")
				if chain == "DOCKER-USER" {
					command(t, iptables, "-N", "DOCKER-USER")
					command(t, iptables, "-I", "FORWARD", "-j", "DOCKER-USER")
				}
			}
			t.Cleanup(func() {
				command(t, "nft", "delete", "table", "ip", "filter")
				command(t, "nft", "delete", "table", "ip6", "filter")
			})
			before := machineState(t)
			serve(t, outside)
			attach(t, b, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
			checkAnswer(t, "outgoing", "one", "tcp", outsideAddress+":8080", outside+" "+machineAddress)
			checkAnswer(t, "incoming", outside, "tcp", machineAddress+":80", "one "+outsideAddress)
			checkAnswer(t, "outgoing", "one", "tcp", "["+outsideAddress6+"]:8080", outside+" "+machineAddress6)
			checkAnswer(t, "incoming", outside, "tcp", "["+machineAddress6+"]:80", "one "+outsideAddress6)
			if rules := command(t, "iptables", "-S", chain); !strings.Contains(rules, "-A "+chain+" -i nomad -j ACCEPT") || strings.Count(rules, "nomad") != 2 {
				t.Errorf("iptables -S %s:\n%s", chain, rules)
			}
			if err := b.Detach("one"); err != nil {
				t.Error(err)
			}
			if after := machineState(t); after != before {
				t.Errorf("after Detach:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// Attach can be repeated at each point at which an agent can die.
func TestAttachIsRepeated(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	e, first := attach(t, b, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	if again, err := b.Attach(e); err != nil || again != first {
		t.Errorf("%v, %v, want %v", again, err, first)
	}
	link, err := netlink.LinkByName(hostInterfaceName("one"))
	if err != nil {
		t.Fatal(err)
	}
	for name, undo := range map[string]func() error{
		"no alias":          func() error { return netlink.LinkSetAlias(link, "") },
		"no address":        func() error { return netns.Do(e.NamespacePath, func() error { return flushAddresses(InterfaceName) }) },
		"no rules":          func() error { return deleteNftablesTablesIfExist("nomad") },
		"interface is down": func() error { return netlink.LinkSetDown(link) },
	} {
		if err := undo(); err != nil {
			t.Fatal(name, err)
		}
		again, err := b.Attach(e)
		if err != nil {
			t.Fatal(name, err)
		}
		if again != first {
			t.Errorf("%s: %v, want %v", name, again, first)
		}
		checkAnswer(t, name, outside, "tcp", machineAddress+":80", "one "+outsideAddress)
		if link, err = netlink.LinkByName(hostInterfaceName("one")); err != nil {
			t.Fatal(name, err)
		}
	}
}

func flushAddresses(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	for _, a := range addresses {
		err = errors.Join(err, netlink.AddrDel(link, &a))
	}
	return err
}

// Two agents that share a bridge give out different addresses, and do not forward one port twice.
func TestAgentsShareBridge(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	const n = 20
	small := testConfig // so small that two agents would choose the same address
	small.IPv4Subnet, small.IPv6Subnet = netip.MustParsePrefix("172.26.64.0/27"), netip.MustParsePrefix("fd00:26:64::/123")
	statuses := make(chan NamespaceStatus, n)
	for i := range n {
		e := newEndpoint(t, New(small), fmt.Sprint("shared-", i))
		go func() {
			s, err := New(small).Attach(e)
			if err != nil {
				t.Error(err)
			}
			statuses <- s
		}()
	}
	used := make(map[netip.Addr]bool)
	for range n {
		s := <-statuses
		if used[s.IPv4Address] || used[s.IPv6Address] || !small.IPv4Subnet.Contains(s.IPv4Address) || !small.IPv6Subnet.Contains(s.IPv6Address) {
			t.Errorf("addresses %v and %v are used twice, or are not of the subnet", s.IPv4Address, s.IPv6Address)
		}
		used[s.IPv4Address], used[s.IPv6Address] = true, true
	}
	one := newEndpoint(t, New(testConfig), "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	two := newEndpoint(t, New(testConfig), "two", ForwardedPort{Label: "web", HostPort: 80, NamespacePort: 8080})
	if _, err := New(testConfig).Attach(one); err != nil {
		t.Fatal(err)
	}
	_, err := New(testConfig).Attach(two)
	if inUse := new(PortInUseError); !errors.As(err, &inUse) || *inUse != (PortInUseError{"web", "one", 80}) {
		t.Error(err)
	}
}

// If an agent died and its state is lost, its namespace does not keep its ports when the interface is gone. An agent without
// knowledge of the bridge disconnects it.
func TestLeftovers(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	c := testConfig
	c.Name = "other"
	b := New(c)
	before := machineState(t)
	attach(t, b, "dead", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	command(t, "ip", "link", "del", hostInterfaceName("dead"))
	attach(t, b, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	checkAnswer(t, "port of a dead allocation", "", "tcp", machineAddress+":80", "one "+machineAddress)
	for range 2 {
		if err := FindBridgeAndDetach("one"); err != nil {
			t.Error(err)
		}
	}
	if after := machineState(t); after != before {
		t.Errorf("left behind:\n%s", after)
	}
}

// If an agent died while it created the bridge, or before it removed it, the bridge is removed.
func TestBridgeOfDeadAgentIsRemoved(t *testing.T) {
	before := machineState(t)
	b := New(testConfig)
	one := newEndpoint(t, b, "one")
	for name, c := range map[string]struct {
		leaveBridge func() error
		detach      func(allocID string) error
	}{
		"created, without an alias": {func() error {
			device, err := createBridge(testConfig.Name)
			if err != nil {
				return err
			}
			return netlink.LinkSetAlias(device, "") // the alias is set last
		}, b.Detach},
		"without interfaces": {func() error {
			if _, err := b.Attach(one); err != nil {
				return err
			}
			return deleteLinkIfExists(hostInterfaceName("one"))
		}, FindBridgeAndDetach},
	} {
		if err := c.leaveBridge(); err != nil {
			t.Fatal(err)
		}
		if err := c.detach("one"); err != nil {
			t.Error(err)
		}
		if after := machineState(t); after != before {
			t.Errorf("%s: left behind:\n%s", name, after)
		}
	}
}

func TestAddressesRunOut(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	c := testConfig
	c.IPv4Subnet = netip.MustParsePrefix("172.26.64.0/29")
	b := New(c)
	used := make(map[netip.Addr]bool)
	for i := range 5 { // 8 addresses; 3 are reserved
		s, err := b.Attach(newEndpoint(t, b, fmt.Sprint("small-", i)))
		if err != nil {
			t.Fatal(err)
		}
		if last := s.IPv4Address.As4()[3]; last < 2 || last > 6 || used[s.IPv4Address] {
			t.Errorf("address %v", s.IPv4Address)
		}
		used[s.IPv4Address] = true
	}
	if _, err := b.Attach(newEndpoint(t, b, "too-many")); err == nil || !strings.Contains(err.Error(), "all 5 addresses of the subnet 172.26.64.0/29 are in use") {
		t.Error(err)
	}
}

// detachAtOnce calls Detach concurrently.
func detachAtOnce(t *testing.T, b *Bridge, allocIDs []string) {
	t.Helper()
	var calls sync.WaitGroup
	for _, id := range allocIDs {
		calls.Go(func() {
			if err := b.Detach(id); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}

// countTracked returns how many tracked connections are from or to an address.
func countTracked(t *testing.T, address netip.Addr) (n int) {
	t.Helper()
	err := deleteTrackedConnections(func(c *trackedConnection) bool {
		if slices.Contains([]netip.Addr{c.request.source, c.request.destination, c.reply.source, c.reply.destination}, address) {
			n++
		}
		return false
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// If a common removal fails, each call returns the error, and the calls can be repeated.
func TestDetachErrorOfAll(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	b := New(testConfig)
	attach(t, b, "one")
	attach(t, b, "two")
	b.config.Name = "uplink" // no bridge
	var calls sync.WaitGroup
	for _, id := range []string{"one", "two"} {
		calls.Go(func() {
			if err := b.Detach(id); err == nil || !strings.Contains(err.Error(), "uplink exists and is no bridge") {
				t.Error(id, err)
			}
		})
	}
	calls.Wait()
	b.config.Name = testConfig.Name
	detachAtOnce(t, b, []string{"one", "two", "one"})
	if device, err := findBridge(testConfig.Name); device != nil || err != nil {
		t.Error("the bridge remains", err)
	}
}

func TestHundredNamespacesLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("connects a hundred namespaces")
	}
	before := machineState(t)
	b := New(testConfig)
	var list []Endpoint
	var statuses []NamespaceStatus
	for i := range 100 {
		e := newEndpoint(t, b, fmt.Sprint("many-", i), ForwardedPort{Label: "http", HostPort: 20000 + i, NamespacePort: 8080})
		s, err := b.Attach(e)
		if err != nil {
			t.Fatal(err)
		}
		list, statuses = append(list, e), append(statuses, s)
	}
	serve(t, "many-42")
	checkAnswer(t, "one of many", outside, "tcp", machineAddress+":20042", "many-42 "+outsideAddress)
	countRequests := func(endpoints []Endpoint) uint64 {
		before := opcount.Read()[opcount.Netlink]
		repair(t, b, endpoints...)
		return opcount.Read()[opcount.Netlink] - before
	}
	if all, one := countRequests(list), countRequests(list[:1]); all != one {
		t.Errorf("a repair that changes nothing makes %d requests for %d namespaces, and %d for one", all, len(list), one)
	}
	// Half end at once; the others, and connections to them, stay.
	serve(t, "many-41")
	checkAnswer(t, "an address of another", "many-41", "tcp", at(statuses[42].IPv4Address, 8080), "many-42 "+statuses[41].IPv4Address.String())
	var ending []string
	for i, e := range list {
		if i%4 == 0 { // the namespace is removed first, as after a crash
			if err := netns.Remove(e.AllocID); err != nil {
				t.Error(err)
			}
		}
		if i%2 == 0 {
			ending = append(ending, e.AllocID)
		}
	}
	detachAtOnce(t, b, ending)
	if n := countTracked(t, statuses[42].IPv4Address); n > 0 {
		t.Errorf("%d connections of a disconnected namespace are tracked", n)
	}
	checkAnswer(t, "another one stays", outside, "tcp", machineAddress+":20041", "many-41 "+outsideAddress)
	checkUnreachable(t, "a disconnected one", outside, machineAddress+":20042")
	ending = nil
	for i, e := range list {
		if i%2 == 1 {
			ending = append(ending, e.AllocID)
		}
	}
	detachAtOnce(t, b, ending)
	if after := machineState(t); after != before {
		t.Errorf("left behind:\n%s\nbefore:\n%s", after, before)
	}
	if err := b.Detach("never-connected"); err != nil {
		t.Error(err)
	}
}

// An administrator's bridge stays, with others' interfaces, and without the rules.
func TestBridgeOfAdministratorStays(t *testing.T) {
	if testing.Short() {
		t.Skip("creates network namespaces; TestNamespacesReachEachOther and TestMasquerade run")
	}
	command(t, "iptables", "-P", "FORWARD", "DROP")
	command(t, "ip", "link", "add", "br-admin", "type", "bridge")
	command(t, "ip", "link", "add", "vm", "type", "veth", "peer", "name", "vm-peer")
	command(t, "ip", "link", "set", "vm", "master", "br-admin")
	t.Cleanup(func() {
		command(t, "ip", "link", "del", "vm")
		command(t, "ip", "link", "del", "br-admin")
		command(t, "nft", "delete", "table", "ip", "filter")
	})
	before := machineState(t)
	c := testConfig
	c.Name = "br-admin"
	b := New(c)
	attach(t, b, "one")
	attach(t, b, "two", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	if err := b.Detach("one"); err != nil {
		t.Error(err)
	}
	checkAnswer(t, "another group", outside, "tcp", machineAddress+":80", "two "+outsideAddress)
	if err := b.Detach("two"); err != nil {
		t.Error(err)
	}
	if after := machineState(t); after != before {
		t.Errorf("after Detach:\n%s\nbefore:\n%s", after, before)
	}
	if routes := command(t, "ip", "-6", "route", "show", "table", "local"); strings.Contains(routes, "::1 dev br-admin metric") {
		t.Errorf("the route for replies to ::1 remains:\n%s", routes)
	}
}

func TestAttachErrors(t *testing.T) {
	b := New(testConfig)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Detach("file"); err != nil {
			t.Error(err)
		}
	})
	if _, err := b.Attach(Endpoint{AllocID: "file", NamespacePath: file}); err == nil || !strings.Contains(err.Error(), "bridge nomad: connect the namespace of allocation file") {
		t.Error(err)
	}
	c := testConfig
	c.Name = "uplink"
	if _, err := New(c).Attach(Endpoint{AllocID: "x"}); err == nil || !strings.Contains(err.Error(), "uplink exists and is no bridge: set bridge_network_name") {
		t.Error(err)
	}
	c.Name, c.IPv4Subnet = "other", netip.MustParsePrefix("10.99.0.0/16")
	if _, err := New(c).Attach(Endpoint{AllocID: "x"}); err == nil || !strings.Contains(err.Error(), "overlaps with the address 10.99.0.1/24 of interface uplink") {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		edit func(*Config)
		want string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.IPv6Subnet = netip.Prefix{} }, ""},
		{func(c *Config) { c.Name = "" }, "bridge_network_name"},
		{func(c *Config) { c.Name = "a-name-that-is-long" }, "bridge_network_name"},
		{func(c *Config) { c.Name = "a/b" }, "bridge_network_name"},
		{func(c *Config) { c.IPv4Subnet = netip.MustParsePrefix("10.0.0.0/31") }, "bridge_network_subnet "},
		{func(c *Config) { c.IPv4Subnet = testConfig.IPv6Subnet }, "bridge_network_subnet "},
		{func(c *Config) { c.IPv6Subnet = testConfig.IPv4Subnet }, "bridge_network_subnet_ipv6"},
	} {
		config := testConfig
		c.edit(&config)
		if err := config.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", config, err, c.want)
		}
	}
}

func BenchmarkAttachAndDetach(b *testing.B) {
	bridge := New(testConfig)
	newEndpoint(b, bridge, "other")
	bridge.Attach(Endpoint{AllocID: "other", NamespacePath: netns.Path("other")})
	var attaching, detaching time.Duration
	for i := range b.N {
		e := newEndpoint(b, bridge, fmt.Sprint("bench-", i), ForwardedPort{Label: "http", HostPort: 20000 + i%1000, NamespacePort: 8080})
		start := time.Now()
		if _, err := bridge.Attach(e); err != nil {
			b.Fatal(err)
		}
		attaching += time.Since(start)
		start = time.Now()
		if err := bridge.Detach(e.AllocID); err != nil {
			b.Fatal(err)
		}
		detaching += time.Since(start)
	}
	b.ReportMetric(float64(attaching.Microseconds())/float64(b.N), "µs/attach")
	b.ReportMetric(float64(detaching.Microseconds())/float64(b.N), "µs/detach")
}

// BenchmarkDetachMany measures how long it takes to disconnect the namespaces of 100 allocations that end at once, and how long
// the kernel alone needs to delete as many veth pairs with their namespaces.
func BenchmarkDetachMany(b *testing.B) {
	const n = 100
	each := func(f func(i int) error) {
		var calls sync.WaitGroup
		for i := range n {
			calls.Go(func() {
				if err := f(i); err != nil {
					b.Error(err)
				}
			})
		}
		calls.Wait()
	}
	id := func(i int) string { return fmt.Sprint("bench-", i) }
	b.Run("bridge", func(b *testing.B) {
		bridge := New(testConfig)
		for b.Loop() {
			b.StopTimer()
			for i := range n {
				e := Endpoint{AllocID: id(i), NamespacePath: netns.Path(id(i)), Ports: []ForwardedPort{{Label: "http", HostPort: 20000 + i, NamespacePort: 8080}}}
				if err := netns.Create(e.AllocID); err != nil {
					b.Fatal(err)
				}
				if _, err := bridge.Attach(e); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
			each(func(i int) error { return errors.Join(bridge.Detach(id(i)), netns.Remove(id(i))) })
		}
	})
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			for i := range n {
				command(b, "ip", "netns", "add", id(i))
				command(b, "ip", "link", "add", hostInterfaceName(id(i)), "type", "veth", "peer", "name", "eth0", "netns", id(i))
			}
			b.StartTimer()
			each(func(i int) error {
				return errors.Join(deleteLinkIfExists(hostInterfaceName(id(i))), netns.Remove(id(i)))
			})
		}
	})
}

// BenchmarkRequest measures requests over one connection from the machine.
func BenchmarkRequest(b *testing.B) {
	bridge := New(testConfig)
	_, one := attach(b, bridge, "one", ForwardedPort{Label: "http", HostPort: 80, NamespacePort: 8080})
	for name, address := range map[string]string{
		"direct": at(one.IPv4Address, 8080), "forwarded": machineAddress + ":80", "localhost": "127.0.0.1:80",
	} {
		b.Run(name, func(b *testing.B) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			r := bufio.NewReader(c)
			for b.Loop() {
				c.Write([]byte("?\n"))
				if _, err := r.ReadString('\n'); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"-connect", func(b *testing.B) {
			for b.Loop() {
				if got := request("", "tcp", address); !strings.HasPrefix(got, "one") {
					b.Fatal(got)
				}
			}
		})
	}
}
