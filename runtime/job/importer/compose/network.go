package compose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// port is a published port of a service.
type port struct {
	at        importer.Position
	label     string
	hostIP    string
	published int // 0: any free port
	target    int
	tcp, udp  bool
}

// readPorts sets the ports of each service.
func (c *converter) readPorts() error {
	c.usedPortLabels = map[string]bool{}
	for _, s := range c.services {
		if err := c.readPortsOf(s); err != nil {
			return err
		}
	}
	return nil
}

func (c *converter) readPortsOf(s *service) error {
	mode := fieldText(s.value, "network_mode")
	if mode == "host" || mode == "none" {
		return nil // compose publishes no ports of such a service either
	}
	list := s.get("ports")
	if list == nil {
		return nil
	}
	for _, item := range list.items {
		ports, err := c.parsePort(item)
		if err != nil {
			return errAt(item.at, err)
		}
		for _, p := range ports {
			i := slices.IndexFunc(s.ports, func(q port) bool {
				return q.hostIP == p.hostIP && q.published == p.published && q.target == p.target
			})
			if i >= 0 {
				s.ports[i].tcp, s.ports[i].udp = s.ports[i].tcp || p.tcp, s.ports[i].udp || p.udp
				continue
			}
			s.ports = append(s.ports, p)
		}
	}
	for i := range s.ports {
		p := &s.ports[i]
		label := importer.Label(s.name)
		if len(s.ports) > 1 {
			label += "_" + strconv.Itoa(p.target)
		}
		p.label = label
		for n := 2; c.usedPortLabels[p.label]; n++ {
			p.label = fmt.Sprintf("%s_%d", label, n)
		}
		c.usedPortLabels[p.label] = true
		if p.udp && !p.tcp {
			c.Add(p.at, "the port %d is published for TCP too, not only for UDP", p.target)
		}
	}
	return nil
}

// maxPorts limits the ports of one range.
const maxPorts = 1000

// parsePort parses "IP:PUBLISHED:TARGET/PROTOCOL", with ranges, and the long form.
func (c *converter) parsePort(v *value) ([]port, error) {
	var hostIP, published, target, protocol string
	if v.kind == mapping {
		hostIP, published, target, protocol = fieldText(v, "host_ip"), fieldText(v, "published"), fieldText(v, "target"), fieldText(v, "protocol")
		for _, key := range v.keys {
			switch key {
			case "host_ip", "published", "target", "protocol":
			case "mode":
				if v.fields[key].text == "host" || v.fields[key].text == "ingress" {
					continue
				}
				fallthrough
			default:
				c.Add(v.fields[key].at, "%s of a port has no counterpart", key)
			}
		}
	} else {
		text := v.text
		text, protocol, _ = strings.Cut(text, "/")
		if i := strings.LastIndex(text, ":"); i >= 0 {
			published, target = text[:i], text[i+1:]
			if j := strings.LastIndex(published, ":"); j >= 0 {
				hostIP, published = published[:j], published[j+1:]
			}
		} else {
			target = text
		}
	}
	protocol = cmp.Or(strings.ToLower(protocol), "tcp")
	if protocol != "tcp" && protocol != "udp" {
		c.Add(v.at, "the protocol %s of a port has no counterpart: TCP and UDP are published", protocol)
	}
	firstTarget, targets, err := parseRange(target)
	if err != nil {
		return nil, err
	}
	firstPublished, publishedCount := 0, 0
	if published != "" && published != "0" {
		if firstPublished, publishedCount, err = parseRange(published); err != nil {
			return nil, err
		}
		if publishedCount != targets {
			if targets != 1 {
				return nil, fmt.Errorf("the ranges of ports %s and %s have different lengths", published, target)
			}
			c.Add(v.at, "any free port is published, not one of %s", published)
			firstPublished = 0
		}
	}
	if hostIP = strings.Trim(hostIP, "[]"); hostIP != "" {
		address, err := netip.ParseAddr(hostIP)
		if err != nil {
			return nil, fmt.Errorf("%q is no address", hostIP)
		}
		if address = address.WithZone(""); address.IsUnspecified() {
			hostIP = ""
		} else {
			hostIP = address.String()
		}
	}
	var ports []port
	for i := range targets {
		p := port{at: v.at, hostIP: hostIP, target: firstTarget + i, tcp: protocol != "udp", udp: protocol == "udp"}
		if firstPublished > 0 {
			p.published = firstPublished + i
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// parseRange parses "80" and "80-85".
func parseRange(text string) (first, count int, err error) {
	from, to, isRange := strings.Cut(text, "-")
	first, err = parsePortNumber(from)
	if err != nil || !isRange {
		return first, 1, err
	}
	last, err := parsePortNumber(to)
	if err == nil && (last < first || last-first >= maxPorts) {
		err = fmt.Errorf("%q is no range of at most %d ports", text, maxPorts)
	}
	return first, last - first + 1, err
}

func parsePortNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port", text)
	}
	return int(n), nil
}

// chooseNetwork decides how the containers reach each other, and sets the names under which each is known.
func (c *converter) chooseNetwork() error {
	joining := 0
	for _, s := range c.services {
		if err := c.readNetworkMode(s); err != nil {
			return err
		}
		if s.ownNetworkMode == "" {
			joining++
		}
		c.readAliases(s)
	}
	switch {
	case c.loader.options.DockerNetwork != "":
		c.network = dockerNetwork
	case len(c.services) == 1 || joining == 0:
		c.network = engineNetwork
	default:
		c.network = sharedNamespace
		return c.warnOfSharedPorts()
	}
	return nil
}

func (c *converter) readNetworkMode(s *service) error {
	mode := s.get("network_mode")
	if mode == nil {
		return nil
	}
	kind, target, _ := strings.Cut(mode.text, ":")
	switch kind {
	case "host", "none":
		s.ownNetworkMode = kind
		if kind == "host" && len(c.services) > 1 {
			c.Add(mode.at, "%s uses the network of the machine: it reaches the others at their published ports, not at their names", s.name)
		}
	case "container":
		s.ownNetworkMode = mode.text
	case "service":
		if c.byName[target] == nil {
			return importer.Errorf(mode.at, "network_mode names the service %q, which does not exist", target)
		}
		if c.loader.options.DockerNetwork != "" {
			c.Add(mode.at, "%s does not share the network of %s: it joins the network %s", s.name, target, c.loader.options.DockerNetwork)
		}
	case "bridge", "default":
	default:
		c.Add(mode.at, "network_mode %q has no counterpart", mode.text)
	}
	return nil
}

func (c *converter) readAliases(s *service) {
	if name := s.get("container_name"); name != nil {
		s.addAlias(name.text)
		c.Add(name.at, "the container of %s has the name %s-ALLOC_ID, not %s; for other services it keeps the name", s.name, s.tasks[0], name.text)
	}
	s.addAlias(fieldText(s.value, "hostname"))
	networks := s.get("networks")
	if networks == nil || networks.kind != mapping {
		return
	}
	for _, name := range networks.keys {
		network := networks.fields[name]
		if network.kind != mapping {
			continue
		}
		for _, key := range network.keys {
			switch v := network.fields[key]; key {
			case "aliases":
				aliases, err := v.asTexts()
				if err != nil {
					c.Add(v.at, "the aliases are not a list")
				}
				for _, alias := range aliases {
					s.addAlias(alias)
				}
			default:
				c.Add(v.at, "%s of a network of %s has no counterpart", key, s.name)
			}
		}
	}
}

// warnOfSharedPorts warns of services that listen on the same port of one namespace.
func (c *converter) warnOfSharedPorts() error {
	listener := map[int]string{}
	for _, s := range c.services {
		if s.ownNetworkMode != "" {
			continue
		}
		targets := map[int]importer.Position{}
		for _, p := range s.ports {
			targets[p.target] = p.at
		}
		if expose := s.get("expose"); expose != nil {
			for _, item := range expose.items {
				text, _, _ := strings.Cut(item.text, "/")
				first, count, err := parseRange(text)
				if err != nil {
					return errAt(item.at, err)
				}
				for i := range count {
					targets[first+i] = item.at
				}
			}
		}
		for _, target := range slices.Sorted(maps.Keys(targets)) {
			at := targets[target]
			if other := listener[target]; other != "" {
				c.Add(at, "%s and %s both listen on port %d, and share one network namespace: change one of them, or use -docker-network, with which each has an address of its own", other, s.name, target)
				continue
			}
			listener[target] = s.name
		}
	}
	return nil
}

// writeNetwork writes the network block of a group.
func (c *converter) writeNetwork(group *importer.Body, services []*service) {
	hasPorts := slices.ContainsFunc(services, func(s *service) bool { return len(s.ports) > 0 })
	if c.network != sharedNamespace && !hasPorts {
		return
	}
	network := group.Block("network")
	if c.network == sharedNamespace {
		network.Set("mode", "bridge")
	}
	for _, s := range services {
		for _, p := range s.ports {
			block := network.Block("port", p.label)
			block.SetNonZero("static", p.published)
			block.Set("to", p.target)
			if p.hostIP != "" {
				block.Set("host_network", c.hostNetwork(p.hostIP))
			}
		}
	}
}

// hostNetwork returns the name of the host network for an address.
func (c *converter) hostNetwork(address string) string {
	ip := netip.MustParseAddr(address) // parsePort has checked it
	name, cidr := "address-"+strings.NewReplacer(".", "-", ":", "-").Replace(address), netip.PrefixFrom(ip, ip.BitLen()).String()
	if ip.IsLoopback() {
		name, cidr = "loopback", "127.0.0.0/8"
		if ip.Is6() {
			name, cidr = "loopback6", "::1/128"
		}
	}
	if c.needs.hostNetworks == nil {
		c.needs.hostNetworks = map[string]string{}
	}
	c.needs.hostNetworks[name] = cidr
	return name
}

// writeTaskNetwork writes the options of a task for its network.
func (c *converter) writeTaskNetwork(config *importer.Body, s *service) {
	hosts := c.extraHosts(s)
	if s.ownNetworkMode != "" {
		config.Set("network_mode", s.ownNetworkMode)
	} else if c.network == dockerNetwork {
		config.Set("network_mode", c.loader.options.DockerNetwork)
		config.Set("network_aliases", append([]string{s.name}, s.aliases...))
	}
	if c.network != sharedNamespace && s.ownNetworkMode == "" {
		var labels []string
		for _, p := range s.ports {
			labels = append(labels, p.label)
		}
		config.SetNonZero("ports", labels)
	}
	hosts = importer.ConfigTexts(hosts)
	if c.network == sharedNamespace && s.ownNetworkMode == "" {
		config.SetLocal("extra_hosts", serviceNamesLocal, hosts)
		return
	}
	config.SetNonZero("extra_hosts", hosts)
}

// serviceNamesLocal is the local value with the names of all services in a shared network namespace, as lines of /etc/hosts.
const serviceNamesLocal = "service_names"

// writeServiceNames writes the local value with the names of services, if the job needs it.
func (c *converter) writeServiceNames(file *importer.Body) {
	if c.network != sharedNamespace {
		return
	}
	var hosts []string
	for _, s := range c.services {
		if s.ownNetworkMode == "" {
			for _, name := range append([]string{s.name}, s.aliases...) {
				hosts = append(hosts, name+":127.0.0.1")
			}
		}
	}
	file.Block("locals").Set(serviceNamesLocal, importer.ConfigTexts(hosts))
}

// extraHosts returns the key extra_hosts of a service.
func (c *converter) extraHosts(s *service) []string {
	extra := s.get("extra_hosts")
	if extra == nil || extra.kind != mapping {
		return nil
	}
	var hosts []string
	for _, host := range extra.keys {
		addresses, err := extra.fields[host].asTexts()
		if err != nil {
			c.Add(extra.fields[host].at, "the address of %s is not a text", host)
		}
		for _, address := range addresses {
			if address == "host-gateway" && c.network == sharedNamespace {
				const bridgeAddress = "172.26.64.1"
				c.Add(extra.fields[host].at, "%s gets the address %s, which the bridge of the agent has by default (bridge_network_subnet)", host, bridgeAddress)
				address = bridgeAddress
			}
			hosts = append(hosts, host+":"+address)
		}
	}
	return hosts
}
