package fingerprint

import (
	"cmp"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// NomadVersion is the Nomad version implemented by the agent. Nomad clients and job constraints compare it.
const NomadVersion = "2.0.6"

// Options are ReadHost's parameters.
type Options struct {
	DataDir      string // data directory; its file system is the node's storage; the directory need not exist
	AgentVersion string // nomad-lite version

	// NetworkInterface names the interface with the node's address. If it is empty or has no address, the default route's interface
	// is used.
	NetworkInterface string

	// ReservedCoreIDs are the ids of cores that tasks do not get. Ids missing on the machine are ignored.
	ReservedCoreIDs []int
	// ReservableCoreIDs are the ids of the cores that tasks can reserve; nil means all others.
	ReservableCoreIDs []int

	PreferIPv6 bool // an interface's IPv6 addresses precede its IPv4 addresses

	// CgroupParent is the cgroup for the cgroups of an agent of root, without the mount point; empty means the default.
	CgroupParent string
}

// Host has the machine's properties. A number that ReadHost could not determine is 0.
type Host struct {
	// Attributes have Nomad's names, without the leading "attr.".
	Attributes map[string]string

	Hostname string
	IP       string // node address; a loopback address if the machine has no other
	// InterfaceOfIP names the interface with IP, empty if the machine has only loopback addresses.
	InterfaceOfIP string
	Interfaces    []Interface
	// NodeNetworks describes the node's networks to API clients; ReadHost leaves it out.
	NodeNetworks []NodeNetwork
	// NetworkModes are the group network modes, besides host and none; ReadHost leaves them out.
	NetworkModes []string
	// HostNetworks are the networks named by the operator, with their addresses; ReadHost leaves them out.
	HostNetworks map[string]HostNetwork
	UsableCores  int // cores that this process can use, including the reserved cores
	UsableCPUMHz int // sum of these cores' frequencies
	Topology     *base.Topology

	// ReservableCoreIDs are the ids of the cores that tasks can reserve, SharedCoreIDs those of the other cores that tasks can use.
	// ReservedCoreIDs are those in Options.ReservedCoreIDs that this process can use.
	ReservableCoreIDs, SharedCoreIDs, ReservedCoreIDs []uint16

	MemoryMB            int
	DataDirFileSystemMB int

	// CgroupVersion is the cgroup version: 1 (also hybrid), 2, or 0 if there are none.
	CgroupVersion int
	// ParentCgroup is the agent's cgroup name, empty if there is none.
	ParentCgroup string

	// Degradations lists, in one sentence each, features and values that this machine lacks.
	Degradations []string
}

// NodeNetwork is a node network in the Nomad API's format: a group network mode, or an interface with addresses for ports.
type NodeNetwork struct {
	Mode, Device, MacAddress string
	Speed                    int // megabits per second; 0 for a mode
	Addresses                []NodeNetworkAddress
}

// NodeNetworkAddress is an interface address under a host network's name.
type NodeNetworkAddress struct {
	Family, Alias, Address, ReservedPorts string
	Gateway                               string // always empty, as in Nomad
}

// HostNetwork is the address for a host network's ports, and its interface.
type HostNetwork struct{ Interface, IP string }

// HostNetworkAddressesExceptIP returns the host networks' addresses, except h.IP.
func (h Host) HostNetworkAddressesExceptIP() []netip.Addr {
	var addresses []netip.Addr
	for _, n := range h.HostNetworks {
		if address, err := netip.ParseAddr(n.IP); err == nil && n.IP != h.IP {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// IsOnlyOfHostNetworks reports whether a node network resource, with the mode and the interface given, is an address for host
// networks' ports only. NodeNetworks has such addresses, and the resources that others see do not.
func (h Host) IsOnlyOfHostNetworks(mode, device string) bool {
	return mode == "host" && device != h.InterfaceOfIP
}

// ReadHost returns this machine's properties.
func ReadHost(o Options) Host {
	p := prober{
		options: o,
		rootFS:  os.DirFS("/"),
		host:    Host{Attributes: make(map[string]string)},
	}
	p.setAgentAttributes()
	p.setKernelAttributes()
	p.readHostnameAndOS()
	p.readCPUAndTopology()
	p.readMemory()
	p.readDataDirStorage()
	p.readCgroups()
	p.readTaskLimits()
	p.readInterfacesAndSelectNodeIP()
	return p.host
}

// prober reads the machine's properties into host.
type prober struct {
	options Options
	rootFS  fs.FS // the machine's root file system
	host    Host
}

// setAttributeUnlessEmpty sets a node attribute, unless the value is empty, and so unknown.
func (p *prober) setAttributeUnlessEmpty(name, value string) {
	if value = strings.TrimSpace(value); value != "" {
		p.host.Attributes[name] = value
	}
}

// setAttributeIfPositive sets a node attribute, unless the number is 0 or negative, and so unknown.
func (p *prober) setAttributeIfPositive(name string, n int64) {
	if n > 0 {
		p.host.Attributes[name] = strconv.FormatInt(n, 10)
	}
}

func (p *prober) addDegradation(sentence string) {
	p.host.Degradations = append(p.host.Degradations, sentence)
}

// readTrimmedTextOrEmpty returns a small file's content, "" if it cannot be read.
func (p *prober) readTrimmedTextOrEmpty(path string) string {
	data, err := fs.ReadFile(p.rootFS, path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (p *prober) setAgentAttributes() {
	p.setAttributeUnlessEmpty("nomad.version", NomadVersion)
	p.setAttributeUnlessEmpty("nomad.service_discovery", "true")
	p.setAttributeUnlessEmpty("plugins.secrets.nomad.version", "1.0.0") // constraint for jobs with secret blocks
	p.setAttributeUnlessEmpty("nomad-lite.version", p.options.AgentVersion)
}

func (p *prober) setKernelAttributes() {
	p.setAttributeUnlessEmpty("kernel.name", runtime.GOOS)
	p.setAttributeUnlessEmpty("cpu.arch", runtime.GOARCH)
	p.setAttributeUnlessEmpty("arch", runtime.GOARCH)
	release, machine := uname()
	p.setAttributeUnlessEmpty("kernel.version", release)
	p.setAttributeUnlessEmpty("kernel.arch", machine)
	p.setAttributeUnlessEmpty("kernel.landlock", landlockVersion())
	p.setAttributeUnlessEmpty("os.signals", strings.Join(sortedTaskSignalNames(), ","))
}

func (p *prober) readHostnameAndOS() {
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "localhost"
	}
	p.host.Hostname = name
	p.setAttributeUnlessEmpty("unique.hostname", name)
	p.setAttributeUnlessEmpty("unique.host_id", hashMachineID(p.readTrimmedTextOrEmpty("etc/machine-id")))

	release := p.readTrimmedTextOrEmpty("etc/os-release")
	if release == "" {
		release = p.readTrimmedTextOrEmpty("usr/lib/os-release")
	}
	id, version := parseOSRelease(release)
	if id == "debian" {
		// On Debian, VERSION_ID has only the major version.
		if full := p.readTrimmedTextOrEmpty("etc/debian_version"); full != "" && '0' <= full[0] && full[0] <= '9' {
			version = full
		}
	}
	if id == "" {
		id = runtime.GOOS
	}
	p.setAttributeUnlessEmpty("os.name", id)
	p.setAttributeUnlessEmpty("os.version", version)
}

// parseOSRelease reads ID and VERSION_ID from an os-release file.
func parseOSRelease(text string) (id, version string) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "VERSION_ID":
			version = value
		}
	}
	return id, version
}

func (p *prober) readCPUAndTopology() {
	usable := runtime.NumCPU()
	cores := cgroup.ParseCPUList(p.readTrimmedTextOrEmpty("sys/devices/system/cpu/online"))
	if len(cores) == 0 {
		for id := range usable {
			cores = append(cores, id)
		}
	}
	online := len(cores)
	p.host.UsableCores = usable
	p.setAttributeIfPositive("cpu.numcores", int64(online))

	info := p.readTrimmedTextOrEmpty("proc/cpuinfo")
	p.setAttributeUnlessEmpty("cpu.modelname", cpuinfoField(info, "model name"))
	p.setNUMAAttributes()
	mhz := p.firstCoreMHz(info)
	p.host.Topology = p.readTopologyAndSetHostCores(cores, mhz)
	reservable := len(p.host.ReservableCoreIDs)
	p.setAttributeIfPositive("cpu.reservablecores", int64(reservable))
	if mhz == 0 {
		p.addDegradation("the frequency of the CPU is unknown: CPU shares are not limited by what the machine has")
		return
	}
	p.host.UsableCPUMHz = usable * mhz
	p.setAttributeIfPositive("cpu.frequency", int64(mhz))
	p.setAttributeIfPositive("cpu.totalcompute", int64(online)*int64(mhz))
	p.setAttributeIfPositive("cpu.usablecompute", int64(reservable)*int64(mhz))
}

// firstCoreMHz returns the first core's base frequency, else its maximum frequency, else its current frequency from cpuinfo, the
// content of /proc/cpuinfo; 0 if all are unknown.
func (p *prober) firstCoreMHz(cpuinfo string) int {
	for _, name := range []string{"base_frequency", "cpuinfo_max_freq"} {
		if khz, err := strconv.Atoi(p.readTrimmedTextOrEmpty("sys/devices/system/cpu/cpu0/cpufreq/" + name)); err == nil && khz >= 1000 {
			return khz / 1000
		}
	}
	mhz, err := strconv.ParseFloat(cpuinfoField(cpuinfo, "cpu MHz"), 64)
	if err != nil || !(mhz >= 1 && mhz < 1e6) {
		return 0
	}
	return int(mhz)
}

// cpuinfoField returns a key's first value in /proc/cpuinfo.
func cpuinfoField(cpuinfo, key string) string {
	for line := range strings.Lines(cpuinfo) {
		k, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (p *prober) setNUMAAttributes() {
	nodes, err := fs.Glob(p.rootFS, "sys/devices/system/node/node[0-9]*")
	if err != nil || len(nodes) == 0 {
		return
	}
	p.setAttributeIfPositive("numa.node.count", int64(len(nodes)))
	for _, node := range nodes {
		p.setAttributeUnlessEmpty("numa."+node[strings.LastIndexByte(node, '/')+1:]+".cores", p.readTrimmedTextOrEmpty(node+"/cpulist"))
	}
}

func (p *prober) readMemory() {
	total := totalMemoryBytes()
	p.host.MemoryMB = int(total >> 20)
	p.setAttributeIfPositive("memory.totalbytes", total)
	if total == 0 {
		p.addDegradation("the size of the memory is unknown: memory is not limited by what the machine has")
	}
}

func (p *prober) readCgroups() {
	p.host.CgroupVersion = cgroupVersion()
	if p.host.CgroupVersion == 0 {
		p.addDegradation("there are no control groups: tasks are not limited, and their children are found by session only")
		return
	}
	version := strconv.Itoa(p.host.CgroupVersion)
	p.setAttributeUnlessEmpty("os.cgroups.version", version)
	p.setAttributeUnlessEmpty("unique.cgroup.version", "v"+version)
	p.setAttributeUnlessEmpty("unique.cgroup.mountpoint", cgroupRoot)
	if os.Geteuid() == 0 {
		p.host.ParentCgroup = cmp.Or(p.options.CgroupParent, "nomad.slice")
	}
}

func sortedTaskSignalNames() []string {
	names := taskSignalNames()
	slices.Sort(names)
	return slices.Compact(names)
}
