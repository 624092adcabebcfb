package netfiles

import (
	"fmt"
	"strings"
)

// Host is a line of /etc/hosts.
type Host struct{ Address, Name string }

// HostsFile returns the content of /etc/hosts: lines for localhost, a line with the hostname and the address of the
// allocation, and the lines more. Without an address, the hostname gets the address 127.0.0.1. A line with an empty
// hostname is omitted.
func HostsFile(address, hostname string, more ...Host) string {
	var text strings.Builder
	text.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	if address == "" {
		address = "127.0.0.1"
	}
	for _, h := range append([]Host{{address, hostname}}, more...) {
		if h.Name != "" {
			fmt.Fprintln(&text, h.Address, h.Name)
		}
	}
	return text.String()
}
