package config

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/wire"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// Cluster has the settings of an agent that is a node of a Nomad cluster.
type Cluster struct {
	Servers   []string // client.servers
	RetryJoin []string // client.server_join.retry_join, or the older client.retry_join

	IntroductionToken    string
	EncryptRPC           bool // tls.rpc
	VerifyServerHostname bool // tls.verify_server_hostname
	Multiplex            wire.MultiplexSettings
	ServerEnabled        bool // server.enabled
	AccessControl        bool // acl.enabled is true; without servers, the agent itself has the tokens
	// ServerHTTPAddr is the URL of the HTTP API of a server; empty means the hosts of the servers with the port 4646.
	ServerHTTPAddr   string         // client.server_http_addr
	TemplateMaxBlock time.Duration  // client.template.block_query_wait; 0: not set
	TemplateMaxStale *time.Duration // client.template.max_stale; nil: not set
}

// ServerAddrs returns the addresses of servers to join. An agent without any schedules for itself, and so does an agent with
// server.enabled: its file is that of a Nomad agent that is server and client in one.
func (c *Cluster) ServerAddrs() []string {
	if c.ServerEnabled {
		return nil
	}
	return append(c.Servers[:len(c.Servers):len(c.Servers)], c.RetryJoin...)
}

// IsNode reports whether the agent is a node of a cluster.
func (c *Cluster) IsNode() bool { return len(c.ServerAddrs()) > 0 }

// warning returns a text about servers that the agent does not join, or an empty text.
func (c *Cluster) warning() string {
	if c.ServerEnabled && len(c.Servers)+len(c.RetryJoin) > 0 {
		return "client.servers is ignored, because server.enabled is true: this agent schedules for itself. To join the servers, set server.enabled to false"
	}
	return ""
}

// parseServerAddrs reads a list of addresses of servers.
func (i configItem) parseServerAddrs() ([]string, error) {
	addrs, err := i.parseStringList()
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		switch {
		case strings.Contains(addr, "provider="):
			return nil, fmt.Errorf("%q searches for servers at a cloud provider, which is not supported: write their addresses", addr)
		case strings.ContainsAny(addr, " /") || addr == "":
			return nil, fmt.Errorf("%q is not an address like nomad.example.com or 10.0.0.1:4647", addr)
		}
	}
	return addrs, nil
}

// checkServerURL returns an error for a text that is not the URL of the HTTP API of a server.
func checkServerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("%q is not a URL like https://nomad.example.com:4646", text)
	}
	return nil
}

// ServerURL returns the URL of ServerHTTPAddr, or nil if it is empty.
func (c *Cluster) ServerURL() *url.URL {
	if u, err := url.Parse(c.ServerHTTPAddr); err == nil && c.ServerHTTPAddr != "" {
		return u
	}
	return nil
}

// serverAddrsSetting returns a setting for a list of addresses of servers.
func serverAddrsSetting(field func(*Config) *[]string) settingSpec {
	return parsedSetting(configItem.parseServerAddrs, field)
}

const retryReason = "the servers are called until one answers"

// serverJoinSettings are the settings of the block client.server_join.
var serverJoinSettings = map[string]settingSpec{
	// Addresses of servers, as in client.servers.
	"retry_join":     serverAddrsSetting(func(c *Config) *[]string { return &c.Cluster.RetryJoin }),
	"retry_interval": {ignoredReason: retryReason},
	"retry_max":      {ignoredReason: retryReason},
	"start_join":     {ignoredReason: "it is for servers"},
}

// rpcSettings are the settings of the block rpc.
var rpcSettings = map[string]settingSpec{
	// Number of streams that can wait for being accepted. [default: 256]
	"accept_backlog": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.Cluster.Multiplex.AcceptBacklog }),
	// Time between two pings of a server. [default: 30s]
	"keep_alive_interval": durationSetting(func(c *Config) *time.Duration { return &c.Cluster.Multiplex.KeepAliveInterval }),
	// Time after which a server that does not read counts as failed. [default: 10s]
	"connection_write_timeout": durationSetting(func(c *Config) *time.Duration { return &c.Cluster.Multiplex.ConnectionWriteTimeout }),
	// Timeout of the acknowledgement of a stream. [default: 75s]
	"stream_open_timeout": durationSetting(func(c *Config) *time.Duration { return &c.Cluster.Multiplex.StreamOpenTimeout }),
	// Timeout from the close of one end of a stream to the close of the other. [default: 5m]
	"stream_close_timeout": durationSetting(func(c *Config) *time.Duration { return &c.Cluster.Multiplex.StreamCloseTimeout }),
}

// A singleModeSetting has an effect only on the node of a cluster, or only if the agent schedules for itself.
type singleModeSetting struct {
	name       string // dotted name in a file
	isSet      func(*Config) bool
	nodeOnly   bool   // else only without servers
	lostEffect string // end of the warning
}

const (
	noConnectionReason = "without servers, there is no connection to one"
	ownDataReason      = "without servers, the agent itself has the variables and services, and notifies templates of changes"
)

// singleModeSettings are all such settings, except the addresses of servers, which choose the mode.
var singleModeSettings = []singleModeSetting{
	{"client.drain_on_shutdown.ignore_system_jobs", func(c *Config) bool { return c.DrainOnExit != nil && c.DrainOnExit.IgnoreSystemJobs }, true, "without servers, the agent stops all jobs"},
	{"client.intro_token", func(c *Config) bool { return c.Cluster.IntroductionToken != "" }, true, noConnectionReason},
	{"client.server_http_addr", func(c *Config) bool { return c.Cluster.ServerHTTPAddr != "" }, true, noConnectionReason},
	{"client.template.block_query_wait", func(c *Config) bool { return c.Cluster.TemplateMaxBlock != 0 }, true, ownDataReason},
	{"client.template.max_stale", func(c *Config) bool { return c.Cluster.TemplateMaxStale != nil }, true, ownDataReason},
	{"tls.rpc", func(c *Config) bool { return c.Cluster.EncryptRPC }, true, noConnectionReason},
	{"tls.verify_server_hostname", func(c *Config) bool { return c.Cluster.VerifyServerHostname }, true, noConnectionReason},
	{"rpc", func(c *Config) bool { return c.Cluster.Multiplex != wire.MultiplexSettings{} }, true, noConnectionReason},
	{"client.refuse_consul_services", func(c *Config) bool { return c.Node.RefuseConsulServices }, false, "the servers of the cluster place jobs"},
	{"server.oidc_issuer", func(c *Config) bool { return c.OIDCIssuer != "" }, false, "the servers of the cluster sign workload identities"},
	{"server: limits of jobs", func(c *Config) bool { return c.JobLimits != model.JobLimits{} }, false, "the servers of the cluster accept jobs"},
	{"server.default_scheduler_config", func(c *Config) bool { return c.Scheduler != SchedulerSettings{} }, false, "the servers of the cluster place jobs"},
	{"server.event_buffer_size", func(c *Config) bool { return c.EventBufferSize != 0 }, false, "the servers of the cluster have the events"},
	{"server.enable_event_broker", func(c *Config) bool { return c.DisableEventStream }, false, "the servers of the cluster have the events"},
	{"server.search", func(c *Config) bool { return c.Search != SearchLimits{} }, false, "the servers of the cluster search"},
	{"acl: lifetimes of tokens, server.acl_token_gc_threshold", func(c *Config) bool { return c.Tokens != TokenSettings{} }, false, "the servers of the cluster have the tokens"},
	{"server: garbage collection", func(c *Config) bool { return c.SchedulerGC != scheduler.GCConfig{} }, false, "the servers of the cluster collect garbage"},
}

// singleModeWarnings returns a text for each setting that has no effect in the mode of c.
func (c *Config) singleModeWarnings() (texts []string) {
	for _, s := range singleModeSettings {
		if s.nodeOnly != c.Cluster.IsNode() && s.isSet(c) {
			texts = append(texts, s.name+" has no effect: "+s.lostEffect)
		}
	}
	return texts
}
