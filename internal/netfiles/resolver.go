package netfiles

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Files with the name servers of the machine. If /etc/resolv.conf has only the loopback address of systemd-resolved,
// the other file has the servers that systemd-resolved uses.
const (
	resolvConf   = "/etc/resolv.conf"
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// Resolver has the resolver settings of a file such as /etc/resolv.conf.
type Resolver struct{ Servers, Searches, Options []string }

// MachineResolver returns the settings in /etc/resolv.conf of the machine. They are empty if the file cannot be read.
func MachineResolver() Resolver { return readResolver(resolvConf) }

// NamespaceResolver returns the settings of the machine without the name servers on its loopback interface, which a
// process in a network namespace cannot reach. If no server is left, it returns the servers that systemd-resolved uses.
// The settings are empty if the file cannot be read.
func NamespaceResolver() Resolver { return namespaceResolver(resolvConf, resolvedConf) }

func namespaceResolver(path, resolvedPath string) Resolver {
	settings := readResolver(path)
	reachable := settings.withoutLoopback()
	if len(reachable.Servers) > 0 || len(settings.Servers) == 0 {
		return reachable
	}
	return readResolver(resolvedPath).withoutLoopback().WithDefaults(reachable)
}

// readResolver returns the settings in a file. They are empty if the file cannot be read.
func readResolver(path string) Resolver {
	text, err := os.ReadFile(path)
	if err != nil {
		return Resolver{}
	}
	return parseResolver(string(text))
}

func parseResolver(text string) (r Resolver) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			r.Servers = append(r.Servers, fields[1])
		case "search", "domain": // of several such lines, the last one applies
			r.Searches = fields[1:]
		case "options":
			r.Options = append(r.Options, fields[1:]...)
		}
	}
	return r
}

func (r Resolver) withoutLoopback() Resolver {
	r.Servers = slices.DeleteFunc(r.Servers, isLoopback)
	return r
}

// HasLoopback reports whether a name server is on the loopback interface.
func (r Resolver) HasLoopback() bool { return slices.ContainsFunc(r.Servers, isLoopback) }

func isLoopback(server string) bool {
	address, err := netip.ParseAddr(server)
	return err == nil && address.Unmap().IsLoopback()
}

// WithDefaults returns the settings, with each empty list replaced by that of other.
func (r Resolver) WithDefaults(other Resolver) Resolver {
	for _, list := range []struct{ own, other *[]string }{
		{&r.Servers, &other.Servers}, {&r.Searches, &other.Searches}, {&r.Options, &other.Options},
	} {
		if len(*list.own) == 0 {
			*list.own = *list.other
		}
	}
	return r
}

// String returns the settings in the format of resolv.conf(5).
func (r Resolver) String() string {
	var text strings.Builder
	for _, s := range r.Servers {
		fmt.Fprintln(&text, "nameserver", s)
	}
	if len(r.Searches) > 0 {
		fmt.Fprintln(&text, "search", strings.Join(r.Searches, " "))
	}
	if len(r.Options) > 0 {
		fmt.Fprintln(&text, "options", strings.Join(r.Options, " "))
	}
	return text.String()
}
