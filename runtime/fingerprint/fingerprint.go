package fingerprint

import (
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// NomadVersion is the version of Nomad whose behaviour is implemented: real clients and
// constraints of jobs compare it.
const NomadVersion = "2.0.6"

// Options selects the inputs of Read.
type Options struct {
	DataDir string // the file system of DataDir is the node's storage; DataDir need not exist
	Version string // version of nomad-lite
}

// Host has the properties of the machine. Unknown numbers are 0.
type Host struct {
	// Attributes have Nomad's names, without the leading "attr.".
	Attributes map[string]string

	Hostname string
	IP       string // address of the default interface; a loopback address if there is none
	Cores    int    // cores that this process may use
	CPUMHz   int    // sum over these cores
	Topology *base.Topology
	MemoryMB int
	DiskMB   int

	// Cgroups is the cgroup version: 1 (also hybrid), 2, or 0 if there are none.
	Cgroups int
	// ParentCgroup is the name of the agent's cgroup, empty if there is none.
	ParentCgroup string

	// Degraded lists, in one sentence each, what this machine lacks.
	Degraded []string
}

// Read reads the properties of this machine.
func Read(o Options) Host {
	p := probe{
		options: o,
		files:   os.DirFS("/"),
		host:    Host{Attributes: make(map[string]string)},
	}
	p.agent()
	p.kernel()
	p.system()
	p.cpu()
	p.memory()
	p.storage()
	p.cgroups()
	p.network()
	return p.host
}

// probe is the state of one Read.
type probe struct {
	options Options
	files   fs.FS // root file system of the machine
	host    Host
}

// set sets one attribute; an empty value means unknown and is not stored.
func (p *probe) set(name, value string) {
	if value = strings.TrimSpace(value); value != "" {
		p.host.Attributes[name] = value
	}
}

func (p *probe) number(name string, n int64) {
	if n > 0 {
		p.host.Attributes[name] = strconv.FormatInt(n, 10)
	}
}

func (p *probe) degraded(what string) { p.host.Degraded = append(p.host.Degraded, what) }

// text returns the content of a small file, "" if it cannot be read.
func (p *probe) text(path string) string {
	data, err := fs.ReadFile(p.files, path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (p *probe) agent() {
	p.set("nomad.version", NomadVersion)
	p.set("nomad.service_discovery", "true")
	p.set("nomad-lite.version", p.options.Version)
}

func (p *probe) kernel() {
	p.set("kernel.name", runtime.GOOS)
	p.set("cpu.arch", runtime.GOARCH)
	p.set("arch", runtime.GOARCH)
	release, machine := uname()
	p.set("kernel.version", release)
	p.set("kernel.arch", machine)
	p.set("kernel.landlock", landlock())
	p.set("os.signals", strings.Join(signalNames(), ","))
}

func (p *probe) system() {
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "localhost"
	}
	p.host.Hostname = name
	p.set("unique.hostname", name)
	p.set("unique.host_id", hostID(p.text("etc/machine-id")))

	release := p.text("etc/os-release")
	if release == "" {
		release = p.text("usr/lib/os-release")
	}
	id, version := osRelease(release)
	if id == "debian" {
		// VERSION_ID has only the major number.
		if full := p.text("etc/debian_version"); full != "" && '0' <= full[0] && full[0] <= '9' {
			version = full
		}
	}
	if id == "" {
		id = runtime.GOOS
	}
	p.set("os.name", id)
	p.set("os.version", version)
}

// osRelease reads ID and VERSION_ID from an os-release file.
func osRelease(text string) (id, version string) {
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

func (p *probe) cpu() {
	usable := runtime.NumCPU()
	cores := parseList(p.text("sys/devices/system/cpu/online"))
	if len(cores) == 0 {
		for id := range usable {
			cores = append(cores, id)
		}
	}
	online := len(cores)
	p.host.Cores = usable
	p.number("cpu.numcores", int64(online))
	p.number("cpu.reservablecores", int64(usable))

	info := p.text("proc/cpuinfo")
	p.set("cpu.modelname", cpuinfo(info, "model name"))
	p.numa()
	mhz := p.mhz(info)
	p.host.Topology = p.topology(cores, mhz)
	if mhz == 0 {
		p.degraded("the frequency of the CPU is unknown: CPU shares are not limited by what the machine has")
		return
	}
	p.host.CPUMHz = usable * mhz
	p.number("cpu.frequency", int64(mhz))
	p.number("cpu.totalcompute", int64(online)*int64(mhz))
	p.number("cpu.usablecompute", int64(usable)*int64(mhz))
}

// mhz returns the frequency of the first core: its base frequency, else the maximum frequency,
// else the current frequency.
func (p *probe) mhz(info string) int {
	for _, name := range []string{"base_frequency", "cpuinfo_max_freq"} {
		if khz, err := strconv.Atoi(p.text("sys/devices/system/cpu/cpu0/cpufreq/" + name)); err == nil && khz >= 1000 {
			return khz / 1000
		}
	}
	mhz, err := strconv.ParseFloat(cpuinfo(info, "cpu MHz"), 64)
	if err != nil || !(mhz >= 1 && mhz < 1e6) {
		return 0
	}
	return int(mhz)
}

// cpuinfo returns the first value of a key in /proc/cpuinfo.
func cpuinfo(info, key string) string {
	for line := range strings.Lines(info) {
		k, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (p *probe) numa() {
	nodes, err := fs.Glob(p.files, "sys/devices/system/node/node[0-9]*")
	if err != nil || len(nodes) == 0 {
		return
	}
	p.number("numa.node.count", int64(len(nodes)))
	for _, node := range nodes {
		p.set("numa."+node[strings.LastIndexByte(node, '/')+1:]+".cores", p.text(node+"/cpulist"))
	}
}

// parseList parses a list such as "0-3,8". It returns nil for an invalid list.
func parseList(list string) (members []int) {
	const limit = 1 << 16
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(first)
		if err != nil || a < 0 {
			return nil
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil || b < a {
				return nil
			}
		}
		if b-a >= limit || len(members)+b-a >= limit {
			return nil
		}
		for n := a; n <= b; n++ {
			members = append(members, n)
		}
	}
	return members
}

func (p *probe) memory() {
	total := memory()
	p.host.MemoryMB = int(total >> 20)
	p.number("memory.totalbytes", total)
	if total == 0 {
		p.degraded("the size of the memory is unknown: memory is not limited by what the machine has")
	}
}

func (p *probe) cgroups() {
	p.host.Cgroups = cgroups()
	if p.host.Cgroups == 0 {
		p.degraded("there are no control groups: tasks are not limited, and their children are found by session only")
		return
	}
	version := strconv.Itoa(p.host.Cgroups)
	p.set("os.cgroups.version", version)
	p.set("unique.cgroup.version", "v"+version)
	p.set("unique.cgroup.mountpoint", cgroupRoot)
	if os.Geteuid() == 0 {
		p.host.ParentCgroup = "nomad.slice"
	}
}

func signalNames() []string {
	names := signals()
	slices.Sort(names)
	return slices.Compact(names)
}
