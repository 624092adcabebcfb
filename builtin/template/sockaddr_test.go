package template

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

// fakeAddresses returns the addresses of a typical machine.
func fakeAddresses() addressList {
	const up = net.FlagUp | net.FlagBroadcast | net.FlagMulticast
	var addresses addressList
	for _, a := range []struct {
		name    string
		flags   net.Flags
		address string
	}{
		{"lo", net.FlagUp | net.FlagLoopback, "127.0.0.1/8"},
		{"lo", net.FlagUp | net.FlagLoopback, "::1/128"},
		{"docker0", up, "172.17.0.1/16"},
		{"eth0", up, "fe80::1/64"},
		{"eth0", up, "2001:4860::5/64"},
		{"eth0", up, "10.0.0.5/24"},
		{"eth0", up, "10.0.0.6/24"},
		{"eth1", up, "8.8.4.4/29"},
		{"eth2", net.FlagBroadcast, "192.168.1.1/30"},
	} {
		addresses = append(addresses, &interfaceAddress{netip.MustParsePrefix(a.address), a.name, a.flags, a.name == "eth0"})
	}
	return addresses
}

func TestSockaddr(t *testing.T) {
	for _, test := range []struct{ expression, want string }{
		{`GetPrivateIP`, "10.0.0.5"},
		{`{{ GetPrivateIPs }}`, "10.0.0.5 10.0.0.6 172.17.0.1"},
		{`GetPublicIP`, "2001:4860::5"},
		{`GetPublicIPs`, "2001:4860::5 8.8.4.4"},
		{`GetInterfaceIP "eth1"`, "8.8.4.4"},
		{`GetInterfaceIP "eth2"`, ""}, // the interface is down
		{`GetInterfaceIPs "eth0"`, "10.0.0.5 10.0.0.6 fe80::1 2001:4860::5"},
		{`GetDefaultInterfaces | include "type" "IPv4" | limit 1`, "10.0.0.5/24"},
		{`GetAllInterfaces | include "name" "^(lo|docker)" | exclude "flags" "loopback" | attr "address"`, "172.17.0.1"},
		{`GetAllInterfaces | include "network" "8.0.0.0/8|172.16.0.0/12" | sort "address" | join "name" ","`, "eth1,docker0"},
		{`GetAllInterfaces | include "address" "^10" | sort "-address" | join "address" ","`, "10.0.0.6,10.0.0.5"},
		{`. | include "rfc" "3927|4193|1918" | include "flags" "up|broadcast" | unique "name" | join "name" " "`, "docker0 eth0"},
		{`GetAllInterfaces | include "size" "/24" | offset 1 | attr "address"`, "10.0.0.6"},
		{`GetAllInterfaces | offset -2 | join "name" " "`, "eth1 eth2"},
		{`GetAllInterfaces | limit 100 | offset 100 | attr "address"`, ""},
		{`GetPrivateInterfaces | sort "-default,size" | join "name" " "`, "docker0 eth0 eth0"},
		{`GetAllInterfaces | sort "private,type,name" | limit 1`, "172.17.0.1/16"},
		{`GetPrivateInterfaces | math "address" "+5" | attr "address"`, "10.0.0.10"},
		{`GetPrivateInterfaces | math "network" "-2" | attr "address"`, "10.0.0.254"},
		{`GetPrivateInterfaces | math "network" "+1" | attr "string"`, "10.0.0.1/24"},
		{`GetPublicInterfaces | math "network" "+1" | attr "address"`, "2001:4860::1"},
		{`print (. | include "name" "eth1" | math "address" "+1" | attr "address") " " (. | include "name" "eth1" | attr "address")`, "8.8.4.5 8.8.4.4"},
		{`GetPrivateIP | printf "%s:80"`, "10.0.0.5:80"},
		{`print (GetAllInterfaces | include "name" "eth1" | attr "network") "/" (GetAllInterfaces | include "name" "eth1" | attr "mask_bits")`, "8.8.4.0/29"},
	} {
		if got, err := fakeAddresses().evaluateExpression(test.expression); err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.expression, got, err, test.want)
		}
	}
	eth1 := fakeAddresses().filter(func(a *interfaceAddress) bool { return a.interfaceName == "eth1" })[0]
	for name, want := range map[string]string{
		"address": "8.8.4.4", "host": "8.8.4.4", "name": "eth1", "flags": "up|broadcast|multicast", "type": "IPv4", "string": "8.8.4.4/29",
		"network": "8.8.4.0", "mask_bits": "29", "netmask": "255.255.255.248", "size": "8", "first_usable": "8.8.4.1", "last_usable": "8.8.4.6",
	} {
		if got, err := eth1.formatAttribute(name); err != nil || got != want {
			t.Errorf("%s of %v: %q, %v, want %q", name, eth1, got, err, want)
		}
	}
	for expression, want := range map[string]string{
		`GetAllInterfaces | include "colour" "red"`:            `not by "colour"`,
		`GetAllInterfaces | include "flags" "up|red"`:          `there is no flag "red", only broadcast,`,
		`GetAllInterfaces | include "rfc" "1"`:                 "RFC 1 are not known; known are 1918,",
		`GetAllInterfaces | include "name" "("`:                "missing closing )",
		`GetAllInterfaces | include "network" "x"`:             "no '/'",
		`GetAllInterfaces | sort "colour"`:                     `not by "colour"`,
		`GetAllInterfaces | attr "colour"`:                     `an address has no "colour"`,
		`GetAllInterfaces | math "address" "x"`:                `"x" is no number`,
		`GetAllInterfaces | math "address" "-9999999999"`:      "is no address",
		`GetAllInterfaces | math "colour" "1"`:                 `not on "colour"`,
		`GetEverything`:                                        `function "GetEverything" not defined`,
		`GetPrivateIP }}{{ range . }}{{ end }}{{ GetPrivateIP`: "is not one pipeline",
		`range . }}{{ end`:                                     "is not one pipeline",
		`define "x" }}{{ end }}{{ template "x"`:                "is not one pipeline",
	} {
		if got, err := fakeAddresses().evaluateExpression(expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v, want an error with %q", expression, got, err, want)
		}
	}
}

// defaultRouteInterfaceIndex returns the index of an existing interface.
func TestDefaultInterface(t *testing.T) {
	index := defaultRouteInterfaceIndex()
	if index == 0 {
		t.Skip("there is no default route here")
	}
	if _, err := net.InterfaceByIndex(index); err != nil {
		t.Error(err)
	}
}
