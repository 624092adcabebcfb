package services

import (
	"fmt"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
)

func TestAddress(t *testing.T) {
	bridged := testSpec()
	bridged.NamespaceIPv4, bridged.NamespaceIPv6 = "172.26.0.2", "fd00::2"
	bare := testSpec()
	bare.Ports, bare.GroupHostIP = nil, ""
	own := testSpec()
	own.NetworkByTask = map[string]TaskNetwork{"t": {IP: "10.0.0.9", Ports: []taskenv.Port{{Label: "db", HostPort: 21000, HostIP: "10.0.0.9"}}}}
	network := &driver.NetworkOverride{Addr: "172.17.0.5", PortMap: map[string]int{"admin": 9000}}
	advertised := &driver.NetworkOverride{Addr: "172.17.0.5", AutoAdvertise: true}

	for _, c := range []struct {
		name        string
		place       addressResolver
		mode, label string
		want        string
	}{
		{"auto is the host", addressResolver{spec: testSpec()}, "auto", "http", "10.0.0.1:20000"},
		{"no mode is auto", addressResolver{spec: testSpec()}, "", "admin", "10.0.0.2:20001"},
		{"auto prefers a custom address, with the mapped port", addressResolver{spec: testSpec(), serviceAddress: "example.com"}, "auto", "http", "example.com:20000"},
		{"a custom address with a literal port", addressResolver{spec: testSpec(), serviceAddress: "example.com"}, "auto", "443", "example.com:443"},
		{"a custom address without a port", addressResolver{spec: testSpec(), serviceAddress: "example.com"}, "auto", "", "example.com:0"},
		{"auto is the driver if that asks for it", addressResolver{spec: testSpec(), driverNetwork: advertised}, "auto", "http", "172.17.0.5:8080"},
		{"auto is not the driver otherwise", addressResolver{spec: testSpec(), driverNetwork: network}, "auto", "http", "10.0.0.1:20000"},
		{"a custom address comes before the driver", addressResolver{spec: testSpec(), driverNetwork: advertised, serviceAddress: "example.com"}, "auto", "http", "example.com:20000"},
		{"host with a literal port", addressResolver{spec: testSpec()}, "host", "6000", "10.0.0.1:6000"},
		{"host without a port is the network's address", addressResolver{spec: testSpec()}, "host", "", "10.0.0.1:0"},
		{"host without a network is empty", addressResolver{spec: bare}, "host", "", ":0"},
		{"host with a port of the task", addressResolver{spec: own, task: "t"}, "host", "db", "10.0.0.9:21000"},
		{"host without a port is the address of the task's network", addressResolver{spec: own, task: "t"}, "host", "", "10.0.0.9:0"},
		{"the port of another task is none", addressResolver{spec: own, task: "u"}, "host", "db", `invalid port "db": port label not found`},
		{"an unknown label", addressResolver{spec: testSpec()}, "host", "nope", `invalid port "nope": port label not found`},
		{"a number that is no port", addressResolver{spec: testSpec()}, "host", "70000", `invalid port "70000": port label not found`},
		{"driver with the mapping's target", addressResolver{spec: testSpec(), driverNetwork: network}, "driver", "http", "172.17.0.5:8080"},
		{"driver with its own port map", addressResolver{spec: testSpec(), driverNetwork: network}, "driver", "admin", "172.17.0.5:9000"},
		{"driver with the host's port", addressResolver{spec: testSpec(), driverNetwork: advertised}, "driver", "admin", "172.17.0.5:20001"},
		{"driver with a number", addressResolver{spec: testSpec(), driverNetwork: network}, "driver", "5432", "172.17.0.5:5432"},
		{"driver with an unknown label", addressResolver{spec: testSpec(), driverNetwork: network}, "driver", "x", `invalid port "x": port label not found`},
		{"driver without a network", addressResolver{spec: testSpec()}, "driver", "http", `cannot use address_mode="driver": no driver network exists`},
		{"alloc", addressResolver{spec: bridged}, "alloc", "http", "172.26.0.2:8080"},
		{"alloc without a target", addressResolver{spec: bridged}, "alloc", "admin", "172.26.0.2:20001"},
		{"alloc with a number", addressResolver{spec: bridged}, "alloc", "53", "172.26.0.2:53"},
		{"alloc without a port", addressResolver{spec: bridged}, "alloc", "", "172.26.0.2:0"},
		{"alloc without a network of its own", addressResolver{spec: testSpec()}, "alloc", "http", `cannot use address_mode="alloc": no allocation network status reported`},
		{"alloc_ipv6", addressResolver{spec: bridged}, "alloc_ipv6", "http", "fd00::2:8080"},
		{"alloc_ipv6 without one", addressResolver{spec: testSpec()}, "alloc_ipv6", "http", `cannot use address_mode="alloc_ipv6": no allocation network status reported`},
		{"alloc with an unknown label", addressResolver{spec: bridged}, "alloc", "x", `invalid port "x": port label not found`},
		{"an unknown mode", addressResolver{spec: testSpec()}, "magic", "http", `invalid address mode "magic"`},
	} {
		ip, port, err := c.place.resolveAddress(c.mode, c.label)
		got := fmt.Sprintf("%s:%d", ip, port)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	bridged := testSpec()
	bridged.NamespaceIPv4 = "172.26.0.2"
	advertised := &driver.NetworkOverride{Addr: "172.17.0.5", AutoAdvertise: true}
	for _, c := range []struct {
		name    string
		place   addressResolver
		service Service
		check   Check
		want    string
	}{
		{"the port of the service on the host", addressResolver{spec: testSpec()}, Service{PortLabel: "http"}, Check{}, "10.0.0.1:20000"},
		{"a port of its own", addressResolver{spec: testSpec()}, Service{PortLabel: "http"}, Check{PortLabel: "admin"}, "10.0.0.2:20001"},
		{"what the driver advertises has no say", addressResolver{spec: testSpec(), driverNetwork: advertised}, Service{PortLabel: "http"}, Check{}, "10.0.0.1:20000"},
		{"a custom address", addressResolver{spec: testSpec(), serviceAddress: "::1"}, Service{PortLabel: "http"}, Check{}, "[::1]:20000"},
		{"a mode of its own", addressResolver{spec: bridged}, Service{PortLabel: "http"}, Check{AddressMode: "alloc"}, "172.26.0.2:8080"},
		{"no port", addressResolver{spec: testSpec()}, Service{}, Check{Name: "c"}, `check "c" has no port`},
		{"an unknown port", addressResolver{spec: testSpec()}, Service{PortLabel: "x"}, Check{}, `invalid port "x": port label not found`},
	} {
		got, err := c.place.resolveCheckAddress(&c.service, &c.check)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
