package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/mount"

	"github.com/nomad-lite/nomad-lite/internal/netfiles"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// mountHostsAndResolvConf mounts files that take the place of options that the engine does not
// accept for a container in the network of another container: /etc/hosts for the name of
// the allocation and extra_hosts, /etc/resolv.conf for the resolver. A file that the task
// mounts itself takes precedence.
func (b *containerBuilder) mountHostsAndResolvConf() error {
	files := map[string]string{}
	if hosts := b.start.NetworkIsolation.Hosts; hosts != nil || len(b.taskConfig.ExtraHosts) > 0 {
		text, err := formatHostsFile(hosts, b.taskConfig.ExtraHosts)
		if err != nil {
			return err
		}
		files["hosts"] = text
	}
	if len(b.hostConfig.DNS)+len(b.hostConfig.DNSSearch)+len(b.hostConfig.DNSOptions) > 0 {
		own := netfiles.Resolver{Searches: b.hostConfig.DNSSearch, Options: b.hostConfig.DNSOptions}
		for _, server := range b.hostConfig.DNS {
			own.Servers = append(own.Servers, server.String())
		}
		files["resolv.conf"] = own.WithDefaults(netfiles.NamespaceResolver()).String()
		b.hostConfig.DNS, b.hostConfig.DNSSearch, b.hostConfig.DNSOptions = nil, nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if b.hasMountAt("/etc/" + name) {
			continue
		}
		file, err := replacePrivateFile(b.start.TaskDir(), "docker-"+name, files[name])
		if err != nil {
			return err
		}
		source := filepath.Join(b.start.TaskDir(), file)
		if b.cannotBindMountReason == nil { // users to whom the job gives access to the task directory can replace the file
			source = b.addDriverMountedSource(driverMountedSource{hostMountSource: hostMountSource{source, b.start.TaskDir(), file, true}})
		}
		b.addBindMount(mount.Mount{Type: mount.TypeBind, Source: source, Target: "/etc/" + name}, "")
	}
	return nil
}

// hasMountAt reports whether the host or the task mounts something at a path.
func (b *containerBuilder) hasMountAt(path string) bool {
	return slices.ContainsFunc(b.hostConfig.Mounts, func(m mount.Mount) bool { return filepath.Clean(m.Target) == path }) ||
		slices.ContainsFunc(b.hostConfig.Binds, func(bind string) bool { return filepath.Clean(strings.Split(bind, ":")[1]) == path })
}

// privateFilePathInTaskDir returns the path, relative to the task's directory, of a file that the
// task must not change.
func privateFilePathInTaskDir(taskDir, name string) string {
	if info, err := os.Stat(filepath.Join(taskDir, "private")); err == nil && info.IsDir() {
		return "private/" + name
	}
	return name // older versions of Nomad have no private directory
}

// replacePrivateFile replaces a file that every user of the container can read, and returns its
// path relative to the task's directory.
func replacePrivateFile(taskDir, name, content string) (string, error) {
	name = privateFilePathInTaskDir(taskDir, name)
	dir, err := os.OpenRoot(taskDir)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	// Users to whom the job gives access to the directory can leave a FIFO there, or a link to
	// another file of the task.
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	const mode = 0o644
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return "", err
	}
	_, err = file.WriteString(content)
	return name, errors.Join(err, file.Chmod(mode), file.Close()) // Chmod sets the mode bits that the umask has removed
}

// formatHostsFile returns the content of /etc/hosts.
func formatHostsFile(alloc *driver.HostsConfig, extraHosts []string) (string, error) {
	if alloc == nil {
		alloc = &driver.HostsConfig{}
	}
	var more []netfiles.Host
	for _, entry := range extraHosts {
		name, address, ok := strings.Cut(entry, ":")
		addr, err := netip.ParseAddr(strings.Trim(address, "[]"))
		if !ok || err != nil || name == "" || strings.ContainsAny(name, " \t\n#") {
			return "", fmt.Errorf("extra_hosts: %q must have the form \"host:address\", with an IP address, in a group with a network of its own", entry)
		}
		more = append(more, netfiles.Host{Address: addr.String(), Name: name})
	}
	return netfiles.HostsFile(alloc.Address, alloc.Hostname, more...), nil
}
