package docker

import (
	"bufio"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/mount"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// mountNetworkFiles mounts files that take the place of options that the engine does not
// accept for a container in the network of another container: /etc/hosts for the name of
// the allocation and extra_hosts, /etc/resolv.conf for the resolver. A file that the task
// mounts itself takes precedence.
func (b *containerBuilder) mountNetworkFiles() error {
	files := map[string]string{}
	if hosts := b.start.NetworkIsolation.Hosts; hosts != nil || len(b.task.ExtraHosts) > 0 {
		text, err := hostsFile(hosts, b.task.ExtraHosts)
		if err != nil {
			return err
		}
		files["hosts"] = text
	}
	if len(b.host.DNS)+len(b.host.DNSSearch)+len(b.host.DNSOptions) > 0 {
		host, err := readResolvConf()
		if err != nil {
			return fmt.Errorf("the resolver of the host: %w", err)
		}
		files["resolv.conf"] = host.with(b.host.DNS, b.host.DNSSearch, b.host.DNSOptions).String()
		b.host.DNS, b.host.DNSSearch, b.host.DNSOptions = nil, nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if b.mountsOver("/etc/" + name) {
			continue
		}
		path, err := writePrivateFile(b.start.TaskDir(), "docker-"+name, files[name])
		if err != nil {
			return err
		}
		b.bind(mount.Mount{Type: mount.TypeBind, Source: path, Target: "/etc/" + name}, "")
	}
	return nil
}

// mountsOver reports whether the host or the task mounts something at a path.
func (b *containerBuilder) mountsOver(path string) bool {
	return slices.ContainsFunc(b.host.Mounts, func(m mount.Mount) bool { return filepath.Clean(m.Target) == path }) ||
		slices.ContainsFunc(b.host.Binds, func(bind string) bool { return filepath.Clean(strings.Split(bind, ":")[1]) == path })
}

// privateFileName returns the path, relative to the task's directory, of a file that the
// task must not change.
func privateFileName(taskDir, name string) string {
	if info, err := os.Stat(filepath.Join(taskDir, "private")); err == nil && info.IsDir() {
		return "private/" + name
	}
	return name // older versions of Nomad have no private directory
}

// writePrivateFile writes a file that every user of the container can read, and returns its
// path.
func writePrivateFile(taskDir, name, text string) (string, error) {
	name = privateFileName(taskDir, name)
	dir, err := os.OpenRoot(taskDir)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	const mode = 0o644
	if err := dir.WriteFile(name, []byte(text), mode); err != nil {
		return "", err
	}
	return filepath.Join(taskDir, name), dir.Chmod(name, mode) // the umask can have removed bits
}

// hostsFile returns the content of /etc/hosts. Without an address of the allocation, its
// name is a name of the loopback interface.
func hostsFile(alloc *driver.HostsConfig, extra []string) (string, error) {
	var text strings.Builder
	text.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	if alloc != nil && alloc.Hostname != "" {
		address := alloc.Address
		if address == "" {
			address = "127.0.0.1"
		}
		fmt.Fprintln(&text, address, alloc.Hostname)
	}
	for _, entry := range extra {
		name, address, ok := strings.Cut(entry, ":")
		addr, err := netip.ParseAddr(strings.Trim(address, "[]"))
		if !ok || err != nil || name == "" || strings.ContainsAny(name, " \t\n#") {
			return "", fmt.Errorf("extra_hosts: %q must have the form \"host:address\", with an IP address, in a group with a network of its own", entry)
		}
		fmt.Fprintln(&text, addr, name)
	}
	return text.String(), nil
}

// resolvConf is the content of /etc/resolv.conf.
type resolvConf struct{ servers, searches, options []string }

// resolvedServers is where systemd-resolved stores the servers behind its loopback address,
// which a container cannot reach.
const resolvedServers = "/run/systemd/resolve/resolv.conf"

// readResolvConf returns the settings of the host, without servers that a container cannot
// reach.
func readResolvConf() (resolvConf, error) {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !os.IsNotExist(err) {
		return resolvConf{}, err
	}
	conf := parseResolvConf(string(text))
	if len(conf.servers) == 0 {
		if text, err := os.ReadFile(resolvedServers); err == nil {
			conf = parseResolvConf(string(text))
		}
	}
	return conf, nil
}

func parseResolvConf(text string) (conf resolvConf) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if addr, err := netip.ParseAddr(fields[1]); err == nil && !addr.IsLoopback() {
				conf.servers = append(conf.servers, fields[1])
			}
		case "search", "domain":
			conf.searches = fields[1:]
		case "options":
			conf.options = append(conf.options, fields[1:]...)
		}
	}
	return conf
}

// with returns the settings with those lists replaced that are not empty.
func (c resolvConf) with(servers []netip.Addr, searches, options []string) resolvConf {
	if len(servers) > 0 {
		c.servers = nil
		for _, s := range servers {
			c.servers = append(c.servers, s.String())
		}
	}
	if len(searches) > 0 {
		c.searches = searches
	}
	if len(options) > 0 {
		c.options = options
	}
	return c
}

func (c resolvConf) String() string {
	var text strings.Builder
	for _, s := range c.servers {
		fmt.Fprintln(&text, "nameserver", s)
	}
	if len(c.searches) > 0 {
		fmt.Fprintln(&text, "search", strings.Join(c.searches, " "))
	}
	if len(c.options) > 0 {
		fmt.Fprintln(&text, "options", strings.Join(c.options, " "))
	}
	return text.String()
}
