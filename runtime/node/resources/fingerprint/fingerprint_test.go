package fingerprint

import (
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

func TestRead(t *testing.T) {
	h := ReadHost(Options{DataDir: filepath.Join(t.TempDir(), "not", "made", "yet"), AgentVersion: "1.2.3"})
	hostname, _ := os.Hostname()
	for name, pattern := range map[string]string{
		"kernel.name":                   runtime.GOOS,
		"kernel.version":                `\d+\.\d+.*`,
		"kernel.arch":                   `\w+`,
		"cpu.arch":                      runtime.GOARCH,
		"arch":                          runtime.GOARCH,
		"os.name":                       `[a-z][a-z0-9._-]*`,
		"os.signals":                    `SIGABRT,.*SIGHUP,.*SIGINT,.*SIGKILL,.*SIGUSR1,.*SIGXFSZ`,
		"cpu.numcores":                  `[1-9]\d*`,
		"cpu.reservablecores":           strconv.Itoa(runtime.NumCPU()),
		"memory.totalbytes":             `[1-9]\d{7,}`,
		"unique.hostname":               regexp.QuoteMeta(hostname),
		"unique.storage.bytestotal":     `[1-9]\d*`,
		"unique.storage.bytesfree":      `[1-9]\d*`,
		"unique.network.ip-address":     `[0-9a-f.:]+`,
		"nomad.version":                 `\d+\.\d+\.\d+`,
		"nomad.service_discovery":       "true",
		"plugins.secrets.nomad.version": `1\.0\.0`,
		"nomad-lite.version":            "1.2.3",
		"nomad-lite.descriptors":        `[1-9]\d*`,
		"nomad-lite.processes":          `[1-9]\d*`,
	} {
		if got := h.Attributes[name]; !regexp.MustCompile("^(" + pattern + ")$").MatchString(got) {
			t.Errorf("%s = %q, want %s", name, got, pattern)
		}
	}
	for name, value := range h.Attributes {
		if value == "" || strings.TrimSpace(value) != value {
			t.Errorf("%s = %q", name, value)
		}
	}
	if h.Hostname != hostname || h.UsableCores != runtime.NumCPU() || h.MemoryMB < 10 || h.DataDirFileSystemMB < 10 {
		t.Errorf("%+v", h)
	}
	if _, err := netip.ParseAddr(h.IP); err != nil {
		t.Error(err)
	}
	if mhz := h.Attributes["cpu.frequency"]; mhz != "" && h.Attributes["cpu.totalcompute"] == "" {
		t.Error("there is a frequency and no total")
	}
	if (h.CgroupVersion == 0) != (h.Attributes["os.cgroups.version"] == "") {
		t.Errorf("cgroups %d, attribute %q", h.CgroupVersion, h.Attributes["os.cgroups.version"])
	}
}

// Read succeeds on a machine without readable files, and Degradations lists what the
// machine lacks.
func TestReadWithoutProcAndSysFiles(t *testing.T) {
	p := prober{rootFS: fstest.MapFS{}, host: Host{Attributes: map[string]string{}}}
	p.setAgentAttributes()
	p.setKernelAttributes()
	p.readHostnameAndOS()
	p.readCPUAndTopology()
	p.readMemory()
	p.readDataDirStorage()
	p.readInterfacesAndSelectNodeIP()
	if p.host.Hostname == "" || p.host.UsableCores < 1 || p.host.IP == "" {
		t.Errorf("%+v", p.host)
	}
	if got := p.host.Attributes["os.name"]; got != runtime.GOOS {
		t.Errorf("os.name = %q, want %s", got, runtime.GOOS)
	}
	if p.host.UsableCPUMHz != 0 || len(p.host.Degradations) == 0 || !strings.Contains(p.host.Degradations[0], "CPU") {
		t.Errorf("CPU %d MHz, degraded: %q", p.host.UsableCPUMHz, p.host.Degradations)
	}
}

func TestParsers(t *testing.T) {
	const cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2596.120\n\nprocessor\t: 1\nmodel name\t: other\ncpu MHz\t\t: 1.5\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  map[string]string
	}{
		{
			"debian has its full version elsewhere",
			map[string]string{"etc/os-release": "NAME=\"Debian\"\nVERSION_ID=\"12\"\nID=debian\n", "etc/debian_version": "12.11\n"},
			map[string]string{"os.name": "debian", "os.version": "12.11"},
		},
		{
			"an unstable debian has no number there",
			map[string]string{"etc/os-release": "ID=debian\nVERSION_ID='13'", "etc/debian_version": "trixie/sid\n"},
			map[string]string{"os.name": "debian", "os.version": "13"},
		},
		{
			"the other place of os-release",
			map[string]string{"usr/lib/os-release": "ID=\"alpine\"\nVERSION_ID=3.20\n"},
			map[string]string{"os.name": "alpine", "os.version": "3.20"},
		},
		{
			"the frequency of the first core",
			map[string]string{"proc/cpuinfo": cpuinfo},
			map[string]string{"cpu.frequency": "2596", "cpu.modelname": "AMD EPYC"},
		},
		{
			"the base frequency is stronger than what the core does now",
			map[string]string{"proc/cpuinfo": cpuinfo, "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "3100000\n"},
			map[string]string{"cpu.frequency": "3100"},
		},
		{
			"so is the highest",
			map[string]string{"proc/cpuinfo": cpuinfo, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3200000\n"},
			map[string]string{"cpu.frequency": "3200"},
		},
		{
			"nonsense is not a frequency",
			map[string]string{"proc/cpuinfo": "cpu MHz : NaN\n", "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "-1"},
			map[string]string{"cpu.frequency": "", "cpu.totalcompute": ""},
		},
		{
			"cores that are online, and memory nodes",
			map[string]string{
				"sys/devices/system/cpu/online": "0-3,8\n", "proc/cpuinfo": cpuinfo,
				"sys/devices/system/node/node0/cpulist": "0-3\n", "sys/devices/system/node/node1/cpulist": "8\n",
			},
			map[string]string{
				"cpu.numcores": "5", "cpu.totalcompute": "12980",
				"numa.node.count": "2", "numa.node0.cores": "0-3", "numa.node1.cores": "8",
			},
		},
		{
			"a list of cores that makes no sense is ignored",
			map[string]string{"sys/devices/system/cpu/online": "0-3,0-9223372036854775807"},
			map[string]string{"cpu.numcores": strconv.Itoa(runtime.NumCPU())},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for path, text := range c.files {
				files[path] = &fstest.MapFile{Data: []byte(text)}
			}
			p := prober{rootFS: files, host: Host{Attributes: map[string]string{}}}
			p.readHostnameAndOS()
			p.readCPUAndTopology()
			for name, want := range c.want {
				if got := p.host.Attributes[name]; got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestTopology(t *testing.T) {
	const cpuinfoText = "cpu MHz : 2596.992\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  base.Topology
	}{
		{
			"two memory nodes and cores of two speeds",
			map[string]string{
				"proc/cpuinfo": cpuinfoText, "sys/devices/system/cpu/online": "0-1,4",
				"sys/devices/system/cpu/cpu0/cpufreq/base_frequency":       "2000000",
				"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq":     "3000000",
				"sys/devices/system/cpu/cpu4/topology/physical_package_id": "1",
				"sys/devices/system/node/online":                           "0-1",
				"sys/devices/system/node/node0/cpulist":                    "0-1",
				"sys/devices/system/node/node1/cpulist":                    "4",
				"sys/devices/system/node/node0/distance":                   "10 32",
				"sys/devices/system/node/node1/distance":                   "32 10",
			},
			base.Topology{
				NodeIDs: []uint32{0, 1}, Distances: [][]uint32{{10, 32}, {32, 10}},
				Cores: []base.Core{{BaseSpeed: 2000, MaxSpeed: 3000}, {CoreID: 1, BaseSpeed: 2000}, {CoreID: 4, NodeID: 1, SocketID: 1, BaseSpeed: 2000}},
			},
		},
		{
			"a machine that shows nothing but its cores",
			map[string]string{"sys/devices/system/cpu/online": "0-1", "sys/devices/system/cpu/cpu1/topology/physical_package_id": "-1"},
			base.Topology{NodeIDs: []uint32{0}, Distances: [][]uint32{{10}}, Cores: []base.Core{{GuessSpeed: 1000}, {CoreID: 1, GuessSpeed: 1000}}},
		},
		{
			"cores of two grades",
			map[string]string{"sys/devices/system/cpu/online": "0-1", "sys/devices/cpu_atom/cpus": "1", "proc/cpuinfo": cpuinfoText},
			base.Topology{NodeIDs: []uint32{0}, Distances: [][]uint32{{10}}, Cores: []base.Core{{BaseSpeed: 2596}, {CoreID: 1, Grade: base.CoreEfficiency, BaseSpeed: 2596}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for path, text := range c.files {
				files[path] = &fstest.MapFile{Data: []byte(text)}
			}
			p := prober{rootFS: files, host: Host{Attributes: map[string]string{}}}
			p.readCPUAndTopology()
			got := *p.host.Topology
			for i, core := range got.Cores {
				if usable := cpuAffinity(); core.Disable != !usable.IsSet(int(core.CoreID)) {
					t.Errorf("core %d: disabled %v", core.CoreID, core.Disable)
				}
				got.Cores[i].Disable = false // Disable was compared above, and depends on the test's machine
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// Reserved cores are disabled in the topology, and not reservable.
func TestReservedCores(t *testing.T) {
	usable := cpuAffinity()
	first := 0
	for !usable.IsSet(first) {
		first++
	}
	files := fstest.MapFS{"proc/cpuinfo": {Data: []byte("cpu MHz : 2500\n")}, "sys/devices/system/cpu/online": {Data: []byte("0-4095")}}
	p := prober{rootFS: files, options: Options{ReservedCoreIDs: []int{first, 5000}}, host: Host{Attributes: map[string]string{}}}
	p.readCPUAndTopology()
	if got := p.host.ReservedCoreIDs; !slices.Equal(got, []uint16{uint16(first)}) {
		t.Errorf("reserved cores %v, want %d", got, first)
	}
	if got, want := len(p.host.ReservableCoreIDs), usable.Count()-1; got != want || slices.Contains(p.host.ReservableCoreIDs, uint16(first)) {
		t.Errorf("reservable cores %v, want %d of them", p.host.ReservableCoreIDs, want)
	}
	if !p.host.Topology.Cores[first].Disable {
		t.Errorf("core %d is not disabled in the topology", first)
	}
	want := strconv.Itoa(usable.Count() - 1)
	if got := p.host.Attributes["cpu.reservablecores"]; got != want {
		t.Errorf("cpu.reservablecores = %q, want %q", got, want)
	}
}

func TestMountedDevice(t *testing.T) {
	const mountTable = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs devtmpfs rw
24 22 254:1 / /var/lib rw - xfs /dev/vdb rw
25 24 254:2 / /var/lib/no\040mad rw - btrfs /dev/mapper/x\040y rw
26 22 254:3 / /srv rw - ext4 /dev/vdc rw
27 26 254:4 / /srv rw - ext4 /dev/vdd rw
nonsense
28 - x
`
	for path, want := range map[string]string{
		"/":                   "/dev/vda",
		"/home/x":             "/dev/vda",
		"/var/lib":            "/dev/vdb",
		"/var/library":        "/dev/vda",
		"/var/lib/no mad/dir": "/dev/mapper/x y",
		"/srv/x":              "/dev/vdd",
	} {
		if got := deviceOfPath(mountTable, path); got != want {
			t.Errorf("volume of %s = %q, want %q", path, got, want)
		}
	}
	if got := deviceOfPath("", "/"); got != "" {
		t.Errorf("volume without a table = %q", got)
	}
}

func TestDefaultInterface(t *testing.T) {
	const routeHeader = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	for _, c := range []struct{ name, route, ipv6, want string }{
		{"none", routeHeader, "", ""},
		{"one", routeHeader + "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n", "", "eth0"},
		{"the lower metric", "a\t00000000\t0\t0003\t0\t0\t600\t00000000\t0\t0\t0\nb\t00000000\t0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n", "", "b"},
		{"one that is down", "a\t00000000\t0\t0002\t0\t0\t0\t00000000\t0\t0\t0\n", "", ""},
		{"half of the world is no default", "tun0\t00000000\t0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n", "", ""},
		{
			"version 6 only", routeHeader,
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n" +
				"00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth6\n", "eth6",
		},
		{"nonsense", "x\ny z\n\n", "q\n", ""},
	} {
		if got := defaultRouteInterface(c.route, c.ipv6); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDefaultAddr(t *testing.T) {
	list := func(text ...string) (addrs []netip.Addr) {
		for _, a := range text {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs
	}
	two := []Interface{{Name: "lo", Addresses: list("10.0.0.9"), isLoopback: true}, {Name: "a", Addresses: list("10.0.0.1")}, {Name: "b", Addresses: list("10.0.0.2", "2001:db8::2")}}
	version6 := []Interface{{Name: "a", Addresses: list("2001:db8::1")}}
	for _, c := range []struct {
		name, iface string
		list        []Interface
		want        string
		found       bool
	}{
		{"the default interface", "b", two, "b 10.0.0.2", true},
		{"no default: the first with an address", "", two, "a 10.0.0.1", true},
		{"a default without an address: another", "c", two, "a 10.0.0.1", true},
		{"version 6 if there is nothing else", "a", version6, "a 2001:db8::1", true},
		{"nothing: the loopback address", "", nil, " 127.0.0.1", false},
		{"the loopback interface only: the loopback address", "lo", two[:1], " 127.0.0.1", false},
	} {
		device, got, found := selectAddressOrLoopback(c.list, c.iface)
		if text := device + " " + got.String(); text != c.want || found != c.found {
			t.Errorf("%s: %v, %v, want %s, %v", c.name, text, found, c.want, c.found)
		}
	}
}

// An interface without a speed, or with a speed unknown to the kernel, has Nomad's default.
func TestSpeedOfInterfaces(t *testing.T) {
	p := prober{rootFS: fstest.MapFS{"sys/class/net/fast/speed": {Data: []byte("25000\n")}, "sys/class/net/down/speed": {Data: []byte("-1\n")}}}
	for name, want := range map[string]int{"fast": 25000, "down": 1000, "virtual": 1000} {
		if got := p.interfaceMBitsOrDefault(name); got != want {
			t.Errorf("%s: %d MBits, want %d", name, got, want)
		}
	}
}

// The first address of an interface, which becomes the node's, is one of the preferred family if there is one.
func TestPreferredAddressFamily(t *testing.T) {
	for preferIPv6, want := range map[bool]string{false: "[10.0.0.1 10.0.0.2 fd00::1]", true: "[fd00::1 10.0.0.1 10.0.0.2]"} {
		addresses := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2")}
		sortByFamily(addresses, preferIPv6)
		if got := fmt.Sprint(addresses); got != want {
			t.Errorf("IPv6 preferred: %v: %s, want %s", preferIPv6, got, want)
		}
	}
}

// Tasks use the cores that cannot be reserved together, so the topology does not disable them.
func TestReservableCores(t *testing.T) {
	usable := cpuAffinity()
	first := 0
	for !usable.IsSet(first) {
		first++
	}
	files := fstest.MapFS{"proc/cpuinfo": {Data: []byte("cpu MHz : 2500\n")}, "sys/devices/system/cpu/online": {Data: []byte("0-4095")}}
	p := prober{rootFS: files, options: Options{ReservableCoreIDs: []int{first}}, host: Host{Attributes: map[string]string{}}}
	p.readCPUAndTopology()
	if got := p.host.ReservableCoreIDs; !slices.Equal(got, []uint16{uint16(first)}) || p.host.Attributes["cpu.reservablecores"] != "1" {
		t.Errorf("reservable cores %v, want %d", got, first)
	}
	if got, want := len(p.host.SharedCoreIDs), usable.Count()-1; got != want || len(p.host.ReservedCoreIDs) > 0 {
		t.Errorf("shared cores %v, want %d of them", p.host.SharedCoreIDs, want)
	}
	for _, id := range p.host.SharedCoreIDs {
		if p.host.Topology.Cores[id].Disable {
			t.Errorf("core %d is disabled in the topology", id)
		}
	}
}

// The interface named by the operator has the node's address, also the loopback interface.
func TestNamedNetworkInterface(t *testing.T) {
	for name, want := range map[string]string{"lo": "lo 127.0.0.1", "": "", "nonexistent": ""} {
		p := prober{rootFS: fstest.MapFS{}, options: Options{NetworkInterface: name}, host: Host{Attributes: map[string]string{}}}
		p.readInterfacesAndSelectNodeIP()
		got := p.host.InterfaceOfIP + " " + p.host.IP
		if want != "" && got != want || p.host.Attributes["unique.network.ip-address"] != p.host.IP {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
		if degraded := slices.ContainsFunc(p.host.Degradations, func(text string) bool { return strings.HasPrefix(text, `network interface "nonexistent"`) }); degraded != (name == "nonexistent") {
			t.Errorf("%q: degradations %q", name, p.host.Degradations)
		}
		if i := slices.IndexFunc(p.host.Interfaces, func(i Interface) bool { return i.Name == "lo" }); i < 0 || p.host.Interfaces[i].MBits != defaultMBits || !p.host.Interfaces[i].Addresses[0].Is4() {
			t.Errorf("interfaces %+v", p.host.Interfaces)
		}
	}
}

func TestHostIDHidesTheMachineID(t *testing.T) {
	const machineID = "3d1219c7c4c5404aaa1f6d2a48adfda4"
	id := hashMachineID(machineID)
	if !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) || strings.Contains(strings.ReplaceAll(id, "-", ""), machineID) {
		t.Errorf("host id %q", id)
	}
	if id != hashMachineID(machineID) || id == hashMachineID(machineID+"x") || hashMachineID("") != "" {
		t.Error("the id does not follow from the machine's")
	}
}

// No file on the machine may crash or block the agent.
func FuzzParsers(f *testing.F) {
	f.Add("processor\t: 0\ncpu MHz\t\t: 2596.120\n", "0-3,8", "ID=debian\nVERSION_ID=\"12\"", "22 1 254:0 / / rw - ext4 /dev/vda rw\n")
	f.Fuzz(func(t *testing.T, cpuinfo, list, release, table string) {
		files := fstest.MapFS{}
		for path, text := range map[string]string{
			"proc/cpuinfo": cpuinfo, "sys/devices/system/cpu/online": list, "etc/os-release": release, "proc/self/mountinfo": table,
			"proc/net/route": table, "proc/net/ipv6_route": table, "sys/devices/system/node/node0/cpulist": list,
		} {
			files[path] = &fstest.MapFile{Data: []byte(text), Mode: fs.ModePerm}
		}
		p := prober{rootFS: files, host: Host{Attributes: map[string]string{}}}
		p.readHostnameAndOS()
		p.readCPUAndTopology()
		p.readDataDirStorage()
		p.readInterfacesAndSelectNodeIP()
		for _, name := range []string{"cpu.numcores", "cpu.totalcompute"} {
			if value, ok := p.host.Attributes[name]; ok {
				if n, err := strconv.ParseInt(value, 10, 64); err != nil || n <= 0 {
					t.Errorf("%s = %q", name, value)
				}
			}
		}
		if p.host.UsableCPUMHz < 0 || p.host.UsableCores < 1 || p.host.IP == "" {
			t.Errorf("%+v", p.host)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		ReadHost(Options{DataDir: "/"})
	}
}

func TestTaskLimits(t *testing.T) {
	for _, c := range []struct {
		name        string
		files       map[string]string
		descriptors uint64 // with an open file limit of 1,000
		processes   uint64 // root's, with a process limit of 100
		pipes       uint64 // another user's
	}{
		{"without files", nil, 936, math.MaxUint64, math.MaxUint64},
		{"a usual machine", map[string]string{
			"proc/sys/fs/file-max": "9223372036854775807", "proc/sys/kernel/pid_max": "32768",
			"proc/sys/kernel/threads-max": "100000", "proc/sys/fs/pipe-user-pages-hard": "0", "proc/sys/fs/pipe-user-pages-soft": "16384",
			"sys/fs/cgroup/pids.max": "max",
		}, 936, 24576, math.MaxUint64},
		{"a small container", map[string]string{
			// Among the descriptors in use, any number may belong to an earlier agent's tasks.
			"proc/sys/fs/file-max": "2000", "proc/sys/fs/file-nr": "1900\t0\t2000", "proc/sys/kernel/pid_max": "32768", "sys/fs/cgroup/pids.max": "400",
			"proc/sys/fs/pipe-user-pages-hard": "2000", "proc/sys/fs/pipe-user-pages-soft": "1600",
		}, 558, 300, 236},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{}
			for path, text := range c.files {
				files[path] = &fstest.MapFile{Data: []byte(text)}
			}
			p := prober{rootFS: files, host: Host{Attributes: map[string]string{}, ParentCgroup: "nomad.slice"}}
			if got := p.maxDescriptorsOfTasks(1000); got != c.descriptors {
				t.Errorf("%d descriptors, want %d", got, c.descriptors)
			}
			if got := p.maxProcessesOfTasks(100, true); got != c.processes {
				t.Errorf("%d processes, want %d", got, c.processes)
			}
			if got := p.maxProcessesOfTasks(100, false); got != 75 {
				t.Errorf("%d processes of a user with a limit of 100, want 75", got)
			}
			if got := p.maxPipesOfTasks(false); got != c.pipes {
				t.Errorf("%d pipes, want %d", got, c.pipes)
			}
			if got := p.maxPipesOfTasks(true); got != math.MaxUint64 {
				t.Errorf("%d pipes of root, want no limit", got)
			}
		})
	}
}
