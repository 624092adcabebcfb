package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// InterfaceName is the name of the interface that plugins create in a namespace.
const InterfaceName = "eth0"

// Config has the directories of the operator. The directories need not exist.
type Config struct {
	PluginDirs []string
	ConfigDir  string
}

// Client runs CNI plugins. Its methods may be called concurrently.
type Client struct {
	config   Config
	cacheDir string
}

// New returns a client whose plugins' results are cached in a directory, which the client creates.
func New(c Config, cacheDir string) *Client { return &Client{c, cacheDir} }

// Endpoint is a network namespace that is connected to a network.
type Endpoint struct {
	AllocID string
	Path    string // file of the namespace; need not exist for Del
	Network []byte // result of NetworkConfig
	Args    map[string]string
	Ports   []Port
}

// Port is a port of the machine that the plugins forward, if one of them has the capability portMappings.
type Port struct {
	HostIP       string // empty for all addresses
	HostPort, To int
}

// Status describes a connected namespace. Fields are empty if the plugins have not reported them.
type Status struct {
	Interface, Address, Address6      string
	DNSServers, DNSSearch, DNSOptions []string
}

// CheckArgs returns an error if arguments would change others: plugins get them as KEY=VALUE;KEY=VALUE.
func CheckArgs(args map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(args)) {
		if strings.ContainsAny(key, ";=") || strings.Contains(args[key], ";") {
			return fmt.Errorf("CNI argument %q: neither the key nor the value %q may contain a semicolon, nor the key an equals sign", key, args[key])
		}
	}
	return nil
}

// NetworkConfig returns the configuration of a network.
func (c *Client) NetworkConfig(name string) ([]byte, error) {
	networks, _ := c.networks()
	if n := networks[name]; n != nil {
		return n.Bytes, nil
	}
	return nil, fmt.Errorf("there is no CNI network %q in %s: create its configuration there, or use one of %q", name, c.config.ConfigDir, slices.Sorted(maps.Keys(networks)))
}

// Networks returns the names of the networks, and errors about files that cannot be read.
func (c *Client) Networks() ([]string, error) {
	networks, err := c.networks()
	return slices.Sorted(maps.Keys(networks)), err
}

func (c *Client) networks() (map[string]*libcni.NetworkConfigList, error) {
	paths, err := libcni.ConfFiles(c.config.ConfigDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, fmt.Errorf("CNI networks: %w", err)
	}
	slices.Sort(paths)
	found := make(map[string]*libcni.NetworkConfigList)
	var errs []error
	for _, path := range paths {
		n, err := readNetwork(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("CNI network %s: %w", path, err))
		} else if found[n.Name] == nil {
			found[n.Name] = n
		}
	}
	return found, errors.Join(errs...)
}

// maxConfigSize limits the configuration of a network, in bytes, because the state of the agent has a copy.
const maxConfigSize = 64 << 10

func readNetwork(path string) (*libcni.NetworkConfigList, error) {
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

// plugins returns the runner of plugins. What they write to stderr is part of their errors.
func (c *Client) plugins() *libcni.CNIConfig {
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}, PluginDecoder: version.PluginDecoder{}}
	return libcni.NewCNIConfigWithCacheDir(c.config.PluginDirs, c.cacheDir, exec)
}

// Add connects a namespace. After an error Del must be called nevertheless.
func (c *Client) Add(ctx context.Context, e Endpoint) (Status, error) {
	list, err := libcni.NetworkConfFromBytes(e.Network)
	if err != nil {
		return Status{}, fmt.Errorf("CNI network: %w", err)
	}
	result, err := c.plugins().AddNetworkList(ctx, list, runtimeConfig(e))
	if err != nil {
		return Status{}, fmt.Errorf("CNI network %q: %w", list.Name, err)
	}
	current, err := types100.NewResultFromResult(result)
	if err != nil {
		return Status{}, fmt.Errorf("CNI network %q: result of the plugins: %w", list.Name, err)
	}
	return newStatus(current, e.Path), nil
}

// Del disconnects a namespace, also if it no longer exists or was not connected completely.
func (c *Client) Del(ctx context.Context, e Endpoint) error {
	list, err := libcni.NetworkConfFromBytes(e.Network)
	if err != nil {
		return fmt.Errorf("CNI network: %w", err)
	}
	runtime := runtimeConfig(e)
	if _, err := os.Stat(e.Path); errors.Is(err, fs.ErrNotExist) {
		runtime.NetNS = "" // plugins then release only addresses and rules of the machine
	}
	if err := c.plugins().DelNetworkList(ctx, list, runtime); err != nil {
		return fmt.Errorf("CNI network %q: disconnect: %w", list.Name, err)
	}
	return nil
}

// portMapping is an element of the capability portMappings.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

func runtimeConfig(e Endpoint) *libcni.RuntimeConf {
	config := &libcni.RuntimeConf{ContainerID: e.AllocID, NetNS: e.Path, IfName: InterfaceName, Args: [][2]string{{"IgnoreUnknown", "true"}}}
	for _, key := range slices.Sorted(maps.Keys(e.Args)) {
		config.Args = append(config.Args, [2]string{key, e.Args[key]})
	}
	var mappings []portMapping
	for _, p := range e.Ports {
		for _, protocol := range []string{"tcp", "udp"} {
			mappings = append(mappings, portMapping{p.HostPort, p.To, protocol, p.HostIP})
		}
	}
	if len(mappings) > 0 {
		config.CapabilityArgs = map[string]any{"portMappings": mappings}
	}
	return config
}

// newStatus returns the status in the result of plugins for the namespace at a path.
func newStatus(result *types100.Result, path string) Status {
	s := Status{DNSServers: result.DNS.Nameservers, DNSSearch: result.DNS.Search, DNSOptions: result.DNS.Options}
	inside := func(index *int) bool {
		if index == nil {
			return true
		}
		return *index >= 0 && *index < len(result.Interfaces) && result.Interfaces[*index].Sandbox != ""
	}
	for _, i := range result.Interfaces {
		if i.Sandbox == path {
			s.Interface = i.Name
			break
		}
	}
	for _, ip := range result.IPs {
		switch {
		case !inside(ip.Interface):
		case ip.Address.IP.To4() != nil:
			if s.Address == "" {
				s.Address = ip.Address.IP.String()
			}
		case s.Address6 == "":
			s.Address6 = ip.Address.IP.String()
		}
	}
	return s
}
