package netfiles

import (
	"fmt"
	"strings"
)

// Host is a line of /etc/hosts.
type Host struct{ Address, Name string }

// Hosts returns the content of /etc/hosts: the loopback interface, the hostname of the allocation with its
// address, and further lines. Without an address, the hostname is a name of the loopback interface. An empty
// hostname is left out.
func Hosts(address, hostname string, more ...Host) string {
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
