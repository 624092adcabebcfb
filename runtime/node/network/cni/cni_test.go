package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/netns"
)

const isolatedVariable = "NOMAD_LITE_CNI_TEST_ISOLATED"

// TestMain starts the test binary again in its own network, as root.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(agentEnv) != "" {
		os.Exit(m.Run())
	}
	if os.Getenv(isolatedVariable) == "" {
		again := exec.Command("/proc/self/exe", os.Args[1:]...)
		again.Env = append(os.Environ(), isolatedVariable+"=1")
		again.Stdout, again.Stderr = os.Stdout, os.Stderr
		again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if err := again.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	for _, dir := range []string{"/run", "/var/lib"} { // plugins store addresses below /var/lib/cni
		err = errors.Join(err, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the network of the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// debianPlugins is the directory in Debian's package containernetworking-plugins.
const debianPlugins = "/usr/lib/cni"

const pairConfig = `{
  "cniVersion": "1.0.0",
  "name": "pair",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "10.77.0.0/29"}], [{"subnet": "fd77::/125"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      },
      "dns": {"nameservers": ["10.77.0.53"], "search": ["pair.example"]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "iptables"}
  ]
}`

// newTestClient returns a client with the networks in files, by name.
func newTestClient(t *testing.T, files map[string]string, pluginDirs ...string) *Client {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return New(Config{PluginDirs: pluginDirs, ConfigDir: dir}, filepath.Join(t.TempDir(), "cache"))
}

func TestNetworks(t *testing.T) {
	c := newTestClient(t, map[string]string{
		"10-pair.conflist": pairConfig,
		"20-again.conf":    `{"cniVersion": "1.0.0", "name": "pair", "type": "bridge"}`,
		"30-single.conf":   `{"cniVersion": "1.0.0", "name": "single", "type": "macvlan"}`,
		"40-bad.conflist":  `{"name": `,
		"50-large.conf":    `{"name": "large", "type": "` + strings.Repeat("x", maxConfigSize) + `"}`,
		"notes.txt":        "no network",
	})
	names, err := c.ReadNetworkNames()
	if !slices.Equal(names, []string{"pair", "single"}) || err == nil || !strings.Contains(err.Error(), "40-bad.conflist") || !strings.Contains(err.Error(), "50-large.conf: it has ") {
		t.Errorf("%q, %v", names, err)
	}
	if config, err := c.ReadNetworkConfigJSON("pair"); err != nil || !json.Valid(config) || !strings.Contains(string(config), "portmap") {
		t.Errorf("%s, %v: the first file with a name counts", config, err)
	}
	if _, err := c.ReadNetworkConfigJSON("x"); err == nil || !strings.Contains(err.Error(), `there is no CNI network "x" in `) || !strings.Contains(err.Error(), `["pair" "single"]`) {
		t.Error(err)
	}
	if names, err := New(Config{ConfigDir: "/no/such/directory"}, "").ReadNetworkNames(); len(names) > 0 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
}

func TestCheckArgs(t *testing.T) {
	for value, args := range map[string]map[string]string{
		"":           {"A": "b", "C": "d=e"},
		`value "b;`:  {"A": "b;NOMAD_JOB_ID=x"},
		`"A;B": nei`: {"A;B": "c"},
		`"A=B": nei`: {"A=B": "c"},
	} {
		if err := CheckArgsForSeparators(args); (err == nil) != (value == "") || err != nil && !strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestPluginVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until a plugin that hangs is killed")
	}
	defer func(timeout time.Duration) { versionTimeout = timeout }(versionTimeout)
	versionTimeout = time.Second
	dir := t.TempDir()
	for name, text := range map[string]string{
		"bridge":  "echo 'CNI bridge plugin v1.6.2' >&2; echo 'CNI protocol versions supported: 1.0.0' >&2",
		"hangs":   "sleep 60",
		"unknown": "echo 'CNI bridge plugin version unknown' >&2",
		"debian":  "echo 'CNI debian plugin version unknown' >&2; echo 'CNI protocol versions supported: 0.1.0, 0.4.0, 1.0.0' >&2",
		"fails":   "echo 'CNI fails plugin v1.0.0'; exit 1",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("CNI x plugin v1.0.0"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := newTestClient(t, nil, "/no/such/directory", dir).RunForPluginVersionByName(t.Context())
	if !maps.Equal(got, map[string]string{"bridge": "v1.6.2", "debian": "1.0.0"}) {
		t.Errorf("%q", got)
	}
}

// A namespace is connected by plugins, reaches the machine, and is disconnected also when it no longer
// exists.
func TestAddAndDel(t *testing.T) {
	if testing.Short() {
		t.Skip("connects and disconnects namespaces with CNI plugins, a second each")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can connect network namespaces")
	}
	if _, err := os.Stat(debianPlugins + "/ptp"); err != nil {
		t.Skip("the plugins of Debian's package containernetworking-plugins are not installed")
	}
	c := newTestClient(t, map[string]string{"pair.conflist": pairConfig}, debianPlugins)
	config, err := c.ReadNetworkConfigJSON("pair")
	if err != nil {
		t.Fatal(err)
	}
	for round := range 8 { // the subnet has five addresses
		if err := netns.Create("one"); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			skipAddressDetection(t, netns.Path("one"))
		}
		e := Endpoint{AllocID: "one", NamespacePath: netns.Path("one"), NetworkConfigJSON: config, CNIArgs: map[string]string{"NOMAD_ALLOC_ID": "one"}, Ports: []ForwardedPort{{HostPort: 8088, NamespacePort: 8080}}}
		s, err := c.Add(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if s.Interface != "eth0" || !strings.HasPrefix(s.IPv4Address, "10.77.0.") || !strings.HasPrefix(s.IPv6Address, "fd77::") || !slices.Equal(s.DNSServers, []string{"10.77.0.53"}) {
			t.Errorf("%+v", s)
		}
		if round == 0 {
			checkReachable(t, e.NamespacePath, s.IPv4Address)
		}
		if round%2 == 1 { // as after a reboot
			if err := netns.Remove("one"); err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			if err := c.Del(t.Context(), e); err != nil {
				t.Error(err)
			}
		}
		if err := netns.Remove("one"); err != nil {
			t.Error(err)
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil || len(interfaces) != 1 {
		t.Errorf("interfaces %v, %v", interfaces, err)
	}
	broken := Endpoint{AllocID: "one", NetworkConfigJSON: []byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "missing"}]}`)}
	if _, err := c.Add(t.Context(), broken); err == nil || !strings.Contains(err.Error(), `CNI network "n": `) || !strings.Contains(err.Error(), "missing") {
		t.Error(err)
	}
}

// The loss of each interface that plugins have created is found, and Del and Add connect the namespace again.
func TestLostLinkIsFound(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can connect network namespaces")
	}
	if _, err := os.Stat(debianPlugins + "/bridge"); err != nil {
		t.Skip("the plugins of Debian's package containernetworking-plugins are not installed")
	}
	const config = `{"cniVersion": "1.0.0", "name": "office", "plugins": [{"type": "bridge", "bridge": "office0", "isGateway": true,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`
	client := newTestClient(t, map[string]string{"office.conflist": config}, debianPlugins)
	add := func(id string) (Endpoint, NamespaceStatus) {
		t.Helper()
		if err := netns.Create(id); err != nil {
			t.Fatal(err)
		}
		e := Endpoint{AllocID: id, NamespacePath: netns.Path(id), NetworkConfigJSON: []byte(config)}
		s, err := client.Add(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		return e, s
	}
	remove := func(e Endpoint) {
		t.Helper()
		if err := errors.Join(client.Del(t.Context(), e), netns.Remove(e.AllocID)); err != nil {
			t.Error(err)
		}
	}
	other, _ := add("other")
	defer func() {
		remove(other)
		runIP(t, "link", "del", "office0")
	}()
	e, s := add("one")
	defer func() { remove(e) }()
	if len(s.Links) != 3 || s.Links[0].Name != "office0" || !s.Links[1].IsPort || s.Links[2] != (Link{Name: "eth0", InNamespace: true}) {
		t.Fatalf("links %+v", s.Links)
	}
	for _, c := range []struct {
		damage     func()
		wantReason string
	}{
		{func() { runIP(t, "link", "del", "office0") }, "office0 was removed"},
		{func() {
			runIP(t, "link", "del", "office0")
			remove(other)
			other, _ = add("other") // creates the bridge
		}, "was not connected to its bridge"},
		{func() { runIP(t, "-n", "one", "link", "del", "eth0") }, "was removed"},
		{func() { runIP(t, "-n", "one", "link", "set", "eth0", "down", "name", "eth7") }, "eth0 was removed"},
	} {
		if reason, err := FindLostLink(e.NamespacePath, s.Links); reason != "" || err != nil {
			t.Errorf("before the damage %q: %q, %v", c.wantReason, reason, err)
		}
		c.damage()
		if reason, err := FindLostLink(e.NamespacePath, s.Links); !strings.HasSuffix(reason, c.wantReason) || err != nil {
			t.Errorf("%q, %v, want %q", reason, err, c.wantReason)
		}
		if err := client.Del(t.Context(), e); err != nil {
			t.Error(err)
		}
		var err error
		if s, err = client.Add(t.Context(), e); err != nil {
			t.Fatal(c.wantReason, err)
		}
	}
	if err := netns.Remove("one"); err != nil {
		t.Error(err)
	}
	if _, err := FindLostLink(e.NamespacePath, s.Links); err == nil {
		t.Error("a namespace that does not exist has its links")
	}
}

func runIP(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// skipAddressDetection makes a namespace's IPv6 addresses usable at once. By default, plugins wait for a second or two
// until the kernel has searched for another machine with the address.
func skipAddressDetection(t *testing.T, path string) {
	t.Helper()
	err := netns.Do(path, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkReachable checks that the machine reaches a server in a namespace, directly and by its forwarded port.
func checkReachable(t *testing.T, path, address string) {
	t.Helper()
	err := netns.Do(path, func() error {
		l, err := net.Listen("tcp", ":8080")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{address + ":8080", "10.77.0.1:8088"} {
		conn, err := net.Dial("tcp", target)
		if err != nil {
			t.Error(err)
			continue
		}
		conn.Close()
	}
}

func TestStatusOfResult(t *testing.T) {
	parse := func(s string) net.IPNet {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		return net.IPNet{IP: ip, Mask: n.Mask}
	}
	host, inside, outOfRange := 0, 1, 7
	got := newStatusFromResult(&types100.Result{
		Interfaces: []*types100.Interface{{Name: "br0"}, {Name: "net1", Sandbox: "/run/netns/a"}},
		IPs: []*types100.IPConfig{
			{Address: parse("10.0.0.1/24"), Interface: &host}, {Address: parse("10.0.0.9/24"), Interface: &outOfRange},
			{Address: parse("10.0.0.2/24"), Interface: &inside}, {Address: parse("10.0.0.3/24")}, {Address: parse("fd00::2/64")},
		},
	}, "/run/netns/a")
	if got.Interface != "net1" || got.IPv4Address != "10.0.0.2" || got.IPv6Address != "fd00::2" {
		t.Errorf("%+v", got)
	}
}
