package services

import (
	"fmt"
	"testing"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

func TestAddress(t *testing.T) {
	bridged := testSpec()
	bridged.Address, bridged.AddressIPv6 = "172.26.0.2", "fd00::2"
	bare := testSpec()
	bare.Ports, bare.HostIP = nil, ""
	own := testSpec()
	own.TaskNets = map[string]TaskNetwork{"t": {IP: "10.0.0.9", Ports: []taskenv.Port{{Label: "db", Value: 21000, HostIP: "10.0.0.9"}}}}
	network := &driver.NetworkOverride{Addr: "172.17.0.5", PortMap: map[string]int{"admin": 9000}}
	advertised := &driver.NetworkOverride{Addr: "172.17.0.5", AutoAdvertise: true}

	for _, c := range []struct {
		name        string
		place       addressSource
		mode, label string
		want        string
	}{
		{"auto is the host", addressSource{spec: testSpec()}, "auto", "http", "10.0.0.1:20000"},
		{"no mode is auto", addressSource{spec: testSpec()}, "", "admin", "10.0.0.2:20001"},
		{"auto prefers a custom address, with the mapped port", addressSource{spec: testSpec(), custom: "example.com"}, "auto", "http", "example.com:20000"},
		{"a custom address with a literal port", addressSource{spec: testSpec(), custom: "example.com"}, "auto", "443", "example.com:443"},
		{"a custom address without a port", addressSource{spec: testSpec(), custom: "example.com"}, "auto", "", "example.com:0"},
		{"auto is the driver if that asks for it", addressSource{spec: testSpec(), network: advertised}, "auto", "http", "172.17.0.5:8080"},
		{"auto is not the driver otherwise", addressSource{spec: testSpec(), network: network}, "auto", "http", "10.0.0.1:20000"},
		{"a custom address comes before the driver", addressSource{spec: testSpec(), network: advertised, custom: "example.com"}, "auto", "http", "example.com:20000"},
		{"host with a literal port", addressSource{spec: testSpec()}, "host", "6000", "10.0.0.1:6000"},
		{"host without a port is the network's address", addressSource{spec: testSpec()}, "host", "", "10.0.0.1:0"},
		{"host without a network is empty", addressSource{spec: bare}, "host", "", ":0"},
		{"host with a port of the task", addressSource{spec: own, task: "t"}, "host", "db", "10.0.0.9:21000"},
		{"host without a port is the address of the task's network", addressSource{spec: own, task: "t"}, "host", "", "10.0.0.9:0"},
		{"the port of another task is none", addressSource{spec: own, task: "u"}, "host", "db", `invalid port "db": port label not found`},
		{"an unknown label", addressSource{spec: testSpec()}, "host", "nope", `invalid port "nope": port label not found`},
		{"a number that is no port", addressSource{spec: testSpec()}, "host", "70000", `invalid port "70000": port label not found`},
		{"driver with the mapping's target", addressSource{spec: testSpec(), network: network}, "driver", "http", "172.17.0.5:8080"},
		{"driver with its own port map", addressSource{spec: testSpec(), network: network}, "driver", "admin", "172.17.0.5:9000"},
		{"driver with the host's port", addressSource{spec: testSpec(), network: advertised}, "driver", "admin", "172.17.0.5:20001"},
		{"driver with a number", addressSource{spec: testSpec(), network: network}, "driver", "5432", "172.17.0.5:5432"},
		{"driver with an unknown label", addressSource{spec: testSpec(), network: network}, "driver", "x", `invalid port "x": port label not found`},
		{"driver without a network", addressSource{spec: testSpec()}, "driver", "http", `cannot use address_mode="driver": no driver network exists`},
		{"alloc", addressSource{spec: bridged}, "alloc", "http", "172.26.0.2:8080"},
		{"alloc without a target", addressSource{spec: bridged}, "alloc", "admin", "172.26.0.2:20001"},
		{"alloc with a number", addressSource{spec: bridged}, "alloc", "53", "172.26.0.2:53"},
		{"alloc without a port", addressSource{spec: bridged}, "alloc", "", "172.26.0.2:0"},
		{"alloc without a network of its own", addressSource{spec: testSpec()}, "alloc", "http", `cannot use address_mode="alloc": no allocation network status reported`},
		{"alloc_ipv6", addressSource{spec: bridged}, "alloc_ipv6", "http", "fd00::2:8080"},
		{"alloc_ipv6 without one", addressSource{spec: testSpec()}, "alloc_ipv6", "http", `cannot use address_mode="alloc_ipv6": no allocation network status reported`},
		{"alloc with an unknown label", addressSource{spec: bridged}, "alloc", "x", `invalid port "x": port label not found`},
		{"an unknown mode", addressSource{spec: testSpec()}, "magic", "http", `invalid address mode "magic"`},
	} {
		ip, port, err := c.place.address(c.mode, c.label)
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
	bridged.Address = "172.26.0.2"
	advertised := &driver.NetworkOverride{Addr: "172.17.0.5", AutoAdvertise: true}
	for _, c := range []struct {
		name    string
		place   addressSource
		service Service
		check   Check
		want    string
	}{
		{"the port of the service on the host", addressSource{spec: testSpec()}, Service{Port: "http"}, Check{}, "10.0.0.1:20000"},
		{"a port of its own", addressSource{spec: testSpec()}, Service{Port: "http"}, Check{Port: "admin"}, "10.0.0.2:20001"},
		{"what the driver advertises has no say", addressSource{spec: testSpec(), network: advertised}, Service{Port: "http"}, Check{}, "10.0.0.1:20000"},
		{"a custom address", addressSource{spec: testSpec(), custom: "::1"}, Service{Port: "http"}, Check{}, "[::1]:20000"},
		{"a mode of its own", addressSource{spec: bridged}, Service{Port: "http"}, Check{AddressMode: "alloc"}, "172.26.0.2:8080"},
		{"no port", addressSource{spec: testSpec()}, Service{}, Check{Name: "c"}, `check "c" has no port`},
		{"an unknown port", addressSource{spec: testSpec()}, Service{Port: "x"}, Check{}, `invalid port "x": port label not found`},
	} {
		got, err := c.place.checkAddress(&c.service, &c.check)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
