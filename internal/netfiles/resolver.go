package netfiles

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Files with the name servers of the machine: the file of all programs, and that of systemd-resolved with the
// servers behind its loopback address.
const (
	resolvConf   = "/etc/resolv.conf"
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// Resolver is the content of /etc/resolv.conf.
type Resolver struct{ Servers, Searches, Options []string }

// MachineResolver returns the settings of the machine. Settings that cannot be read are empty.
func MachineResolver() Resolver { return readResolver(resolvConf) }

// NamespaceResolver returns the settings of the machine without the name servers on its loopback interface, which a
// namespace does not reach. If all are there, the servers of systemd-resolved take their place.
// Settings that cannot be read are empty.
func NamespaceResolver() Resolver { return namespaceResolver(resolvConf, resolvedConf) }

func namespaceResolver(path, resolvedPath string) Resolver {
	settings := readResolver(path)
	reachable := settings.withoutLoopback()
	if len(reachable.Servers) > 0 || len(settings.Servers) == 0 {
		return reachable
	}
	return readResolver(resolvedPath).withoutLoopback().Or(reachable)
}

// readResolver returns the settings of a file; empty ones if it cannot be read.
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
		case "search", "domain": // the last line counts
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

// Or returns the settings with the lists of other in place of empty ones.
func (r Resolver) Or(other Resolver) Resolver {
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
