package netfiles

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHosts(t *testing.T) {
	const loopback = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
	for _, c := range []struct{ name, got, want string }{
		{"no hostname", HostsFile("172.26.64.5", ""), ""},
		{"no address", HostsFile("", "web"), "127.0.0.1 web\n"},
		{"more", HostsFile("172.26.64.5", "web", Host{"10.0.0.7", "db"}), "172.26.64.5 web\n10.0.0.7 db\n"},
	} {
		if c.got != loopback+c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, loopback+c.want)
		}
	}
}

func TestNamespaceResolver(t *testing.T) {
	const stub = "nameserver 127.0.0.53\nnameserver ::1\noptions edns0\nsearch lan\n"
	for _, c := range []struct{ name, machine, resolved, want string }{
		{"settings of the machine", "# x\nnameserver 10.0.0.53\ndomain lan\n", "nameserver 10.0.0.99\n", "nameserver 10.0.0.53\nsearch lan\n"},
		{"one server on the loopback interface", "nameserver 127.0.0.1\nnameserver 10.0.0.53\n", "nameserver 10.0.0.99\n", "nameserver 10.0.0.53\n"},
		{"servers of systemd-resolved", stub, "nameserver 10.0.0.53\nnameserver 127.0.0.1\nsearch a.example b.example\n", "nameserver 10.0.0.53\nsearch a.example b.example\noptions edns0\n"},
		{"systemd-resolved knows no server", stub, "search a.example\n", "search a.example\noptions edns0\n"},
		{"systemd-resolved is not there", stub, "", "search lan\noptions edns0\n"},
		{"machine has no name server", "search lan\n", "nameserver 10.0.0.53\n", "search lan\n"},
		{"mapped address", "nameserver ::ffff:127.0.0.53\n", "nameserver 10.0.0.53\n", "nameserver 10.0.0.53\n"},
		{"incomplete lines", "nameserver\nsearch\nnameserver x\n", "", "nameserver x\n"},
	} {
		dir := t.TempDir()
		machine, resolved := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "resolved.conf")
		if err := os.WriteFile(machine, []byte(c.machine), 0o644); err != nil {
			t.Fatal(err)
		}
		if c.resolved != "" {
			if err := os.WriteFile(resolved, []byte(c.resolved), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := namespaceResolver(machine, resolved).String(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestOr(t *testing.T) {
	machine := parseResolver("nameserver 10.1.1.1\nsearch a b\noptions edns0\noptions ndots:2\n")
	if got, want := (Resolver{Searches: []string{"c"}}).WithDefaults(machine).String(), "nameserver 10.1.1.1\nsearch c\noptions edns0 ndots:2\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("nameserver 10.0.0.1\nsearch a b\noptions ndots:2\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := parseResolver(text)
		if again := parseResolver(r.String()); again.String() != r.String() {
			t.Errorf("%q is read as %q", r.String(), again.String())
		}
	})
}
