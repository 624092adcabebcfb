package hostnet

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Files with the name servers of the machine: the file of all programs, and that of systemd-resolved with the
// servers that it asks.
const (
	resolvConf   = "/etc/resolv.conf"
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// namespaceDNS returns the DNS settings for tasks in a namespace, nil if the settings of the machine
// work there. They do not work if all name servers listen on the loopback interface of the machine.
func namespaceDNS(path, resolvedPath string) *driver.DNSConfig {
	settings := readResolvConf(path)
	if len(settings.Servers) == 0 || slices.ContainsFunc(settings.Servers, func(s string) bool { return !isLoopback(s) }) {
		return nil
	}
	settings = readResolvConf(resolvedPath)
	settings.Servers = slices.DeleteFunc(settings.Servers, isLoopback)
	if len(settings.Servers) == 0 {
		return nil
	}
	return settings
}

func isLoopback(server string) bool {
	address, err := netip.ParseAddr(server)
	return err == nil && address.IsLoopback()
}

// readResolvConf returns the settings of a file; empty ones if it cannot be read.
func readResolvConf(path string) *driver.DNSConfig {
	settings := new(driver.DNSConfig)
	text, err := os.ReadFile(path)
	if err != nil {
		return settings
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			settings.Servers = append(settings.Servers, fields[1])
		case "search":
			settings.Searches = fields[1:]
		case "options":
			settings.Options = append(settings.Options, fields[1:]...)
		}
	}
	return settings
}
