package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// InterfaceName is the name of the interface that plugins create in a namespace.
const InterfaceName = "eth0"

// Config has the operator's directories. The directories need not exist.
type Config struct {
	PluginDirs []string
	ConfigDir  string
}

// Client runs CNI plugins. Its methods may be called concurrently.
type Client struct {
	config         Config
	resultCacheDir string
	callRecorder   *callRecorder
}

// New returns a client. The client stores plugin results and the ids of the calls in progress in resultCacheDir, which it
// creates. Only one client at a time may call Add and Del with the same resultCacheDir.
func New(c Config, resultCacheDir string) *Client {
	return &Client{c, resultCacheDir, newCallRecorder(resultCacheDir)}
}

// Endpoint is a network namespace and the network that Add connects it to and Del disconnects it from.
type Endpoint struct {
	AllocID           string
	NamespacePath     string            // namespace file; need not exist for Del
	NetworkConfigJSON []byte            // from Client.ReadNetworkConfigJSON
	CNIArgs           map[string]string // CNI arguments: key -> value
	Ports             []ForwardedPort
}

// ForwardedPort is a machine port that the plugins forward, if one has the capability portMappings.
type ForwardedPort struct {
	HostIP                  string // empty for all addresses
	HostPort, NamespacePort int    // number on the machine, and in the namespace
}

// NamespaceStatus describes a connected namespace as reported by the plugins. Unreported fields are empty.
type NamespaceStatus struct {
	Interface, IPv4Address, IPv6Address string
	DNSServers, DNSSearch, DNSOptions   []string
	Links                               []Link
}

// CheckArgsForSeparators returns an error if an argument contains a separator from KEY=VALUE;KEY=VALUE, in which form
// plugins get the arguments.
func CheckArgsForSeparators(args map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(args)) {
		if strings.ContainsAny(key, ";=") || strings.Contains(args[key], ";") {
			return fmt.Errorf("CNI argument %q: neither the key nor the value %q may contain a semicolon, nor the key an equals sign", key, args[key])
		}
	}
	return nil
}

// ReadNetworkConfigJSON returns a network's configuration.
func (c *Client) ReadNetworkConfigJSON(name string) ([]byte, error) {
	networks, _ := c.readNetworkConfigByName()
	if n := networks[name]; n != nil {
		return n.Bytes, nil
	}
	return nil, fmt.Errorf("there is no CNI network %q in %s: create its configuration there, or use one of %q", name, c.config.ConfigDir, slices.Sorted(maps.Keys(networks)))
}

// ReadNetworkNames returns the configured networks' names, and the errors for unreadable files.
func (c *Client) ReadNetworkNames() ([]string, error) {
	networks, err := c.readNetworkConfigByName()
	return slices.Sorted(maps.Keys(networks)), err
}

// readNetworkConfigByName returns network name -> configuration. If several files have a name, the first file in path order
// counts.
func (c *Client) readNetworkConfigByName() (map[string]*libcni.NetworkConfigList, error) {
	paths, err := libcni.ConfFiles(c.config.ConfigDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("CNI networks: %w", err)
	}
	slices.Sort(paths)
	found := make(map[string]*libcni.NetworkConfigList)
	var errs []error
	for _, path := range paths {
		n, err := readConfigFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("CNI network %s: %w", path, err))
		} else if found[n.Name] == nil {
			found[n.Name] = n
		}
	}
	return found, errors.Join(errs...)
}

// maxConfigSize is a network configuration's maximum size in bytes, because each allocation's record has a copy.
const maxConfigSize = 64 << 10

// readConfigFile reads a .conflist file, or a file with a single plugin.
func readConfigFile(path string) (*libcni.NetworkConfigList, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxConfigSize {
		return nil, fmt.Errorf("it has %d bytes, and %d are allowed", info.Size(), maxConfigSize)
	}
	if filepath.Ext(path) == ".conflist" {
		return libcni.NetworkConfFromFile(path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	single, err := libcni.NetworkPluginConfFromBytes(text)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 Nomad reads files with one plugin, too
	return libcni.ConfListFromConf(single)
}

// newLibcni returns the libcni client that runs the plugins.
func (c *Client) newLibcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(c.config.PluginDirs, c.resultCacheDir, &pluginExec{recorder: c.callRecorder})
}

// Add connects a namespace. After an error Del must be called nevertheless. Before Add and Del call a plugin, they kill the
// processes left from calls during which an earlier agent has died.
func (c *Client) Add(ctx context.Context, e Endpoint) (NamespaceStatus, error) {
	list, err := libcni.NetworkConfFromBytes(e.NetworkConfigJSON)
	if err != nil {
		return NamespaceStatus{}, fmt.Errorf("CNI network: %w", err)
	}
	result, err := c.newLibcni().AddNetworkList(ctx, list, runtimeConfig(e))
	if err != nil {
		return NamespaceStatus{}, fmt.Errorf("CNI network %q: %w", list.Name, err)
	}
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return NamespaceStatus{}, fmt.Errorf("CNI network %q: result of the plugins: %w", list.Name, err)
	}
	status := newStatusFromResult(current, e.NamespacePath)
	if status.Links, err = findReportedLinks(current, e.NamespacePath); err != nil {
		return NamespaceStatus{}, fmt.Errorf("CNI network %q: %w", list.Name, err)
	}
	return status, nil
}

// Del disconnects a namespace that Add has connected, completely or in part, even if the namespace no longer exists.
func (c *Client) Del(ctx context.Context, e Endpoint) error {
	list, err := libcni.NetworkConfFromBytes(e.NetworkConfigJSON)
	if err != nil {
		return fmt.Errorf("CNI network: %w", err)
	}
	runtime := runtimeConfig(e)
	if _, err := os.Stat(e.NamespacePath); errors.Is(err, fs.ErrNotExist) {
		runtime.NetNS = "" // without a namespace, plugins release only the machine's addresses and rules
	}
	if err := c.newLibcni().DelNetworkList(ctx, list, runtime); err != nil {
		return fmt.Errorf("CNI network %q: disconnect: %w", list.Name, err)
	}
	return nil
}

// portMapping is an element in the capability portMappings.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

func runtimeConfig(e Endpoint) *libcni.RuntimeConf {
	config := &libcni.RuntimeConf{ContainerID: e.AllocID, NetNS: e.NamespacePath, IfName: InterfaceName, Args: [][2]string{{"IgnoreUnknown", "true"}}}
	for _, key := range slices.Sorted(maps.Keys(e.CNIArgs)) {
		config.Args = append(config.Args, [2]string{key, e.CNIArgs[key]})
	}
	var mappings []portMapping
	for _, p := range e.Ports {
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, portMapping{p.HostPort, p.NamespacePort, protocol, p.HostIP})
		}
	}
	if len(mappings) > 0 {
		config.CapabilityArgs = map[string]any{"portMappings": mappings}
	}
	return config
}

// newStatusFromResult converts plugin results for the namespace at a path.
func newStatusFromResult(result *types100.Result, namespacePath string) NamespaceStatus {
	s := NamespaceStatus{DNSServers: result.DNS.Nameservers, DNSSearch: result.DNS.Search, DNSOptions: result.DNS.Options}
	inside := func(index *int) bool {
		if index == nil {
			return true
		}
		return *index >= 0 && *index < len(result.Interfaces) && result.Interfaces[*index].Sandbox != ""
	}
	for _, i := range result.Interfaces {
		if i.Sandbox == namespacePath {
			s.Interface = i.Name
			break
		}
	}
	for _, ip := range result.IPs {
		switch {
		case !inside(ip.Interface):
		case ip.Address.IP.To4() != nil:
			if s.IPv4Address == "" {
				s.IPv4Address = ip.Address.IP.String()
			}
		case s.IPv6Address == "":
			s.IPv6Address = ip.Address.IP.String()
		}
	}
	return s
}
