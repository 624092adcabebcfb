package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// settingSpec describes a setting that the agent knows. Exactly one of setInConfig, blockSettings and ignoredReason is not
// zero.
//
// The comment above a setting with an effect is its row in docs/reference/agent-config.md. It describes the setting, and has the
// facts in brackets that the table does not have: the type if valueType is nil, the default, whether a reload applies a change,
// and whether Nomad lacks the setting. The settings of blocks with labels have such comments in the functions that read them.
type settingSpec struct {
	setInConfig   func(*Config, configItem) error
	blockSettings map[string]settingSpec
	initBlock     func(*Config) // called when the block is read, even if the block is empty
	ignoredReason string        // reason why the setting has no effect, for a warning
	valueType     reflect.Type  // type of the parsed value, for docs/promises; nil if setInConfig is written for one setting
}

// Reasons why settings are ignored, for warnings.
const (
	noServersReason      = "there are no servers here, this agent decides for itself"
	noHeartbeatReason    = "this node sends no heartbeats, its scheduler is in the same agent"
	oneNodeReason        = "there is one node here, which is never removed"
	oneSchedulerReason   = "there is one scheduler here, for all types of jobs"
	noLoginReason        = "there are no logins here"
	tokenCacheReason     = "a change of a token, role or policy counts at once; in a cluster, within 30 seconds"
	notInNomadReason     = "Nomad 2.0 does not have it"
	noHookMetricsReason  = "there are no metrics of hooks"
	logToStderrReason    = "the log is written to standard error; systemd passes it to the journal"
	noCSIReason          = "there are no CSI plugins here"
	noConsulReason       = "there is no Consul here"
	noVaultReason        = "there is no Vault here"
	enterpriseOnlyReason = "it belongs to Nomad Enterprise"
)

// parsedSetting and the other functions that return settings are not inlined: inlining would create a closure for
// each setting, together 33 kB.
//
//go:noinline
func parsedSetting[T any](read func(configItem) (T, error), field func(*Config) *T) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[T](), setInConfig: func(c *Config, i configItem) error {
		v, err := read(i)
		if err == nil {
			*field(c) = v
		}
		return err
	}}
}

// newCheckedParser returns a function that reads a value and rejects it if check returns an error.
//
//go:noinline
func newCheckedParser[T any](read func(configItem) (T, error), check func(T) error) func(configItem) (T, error) {
	return func(i configItem) (T, error) {
		v, err := read(i)
		if err == nil {
			err = check(v)
		}
		return v, err
	}
}

func stringSetting(field func(*Config) *string) settingSpec {
	return parsedSetting(configItem.parseScalarAsString, field)
}
func booleanSetting(field func(*Config) *bool) settingSpec {
	return parsedSetting(configItem.parseBoolean, field)
}
func percentSetting(field func(*Config) *float64) settingSpec {
	return parsedSetting(configItem.parseNumber, field)
}

func durationSetting(field func(*Config) *time.Duration) settingSpec {
	return parsedSetting(configItem.parseDuration, field)
}

// wholeNumberSetting returns a setting for a whole number in a range.
//
//go:noinline
func wholeNumberSetting[T int | uint64](low, high float64, field func(*Config) *T) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[int](), setInConfig: func(c *Config, i configItem) error {
		f, err := i.parseNumber()
		switch {
		case err != nil:
			return err
		case f != float64(int64(f)) || f < low || f > high:
			return fmt.Errorf("must be a whole number from %.0f to %.0f", low, high)
		}
		*field(c) = T(f)
		return nil
	}}
}

// coreListSetting returns a setting for a list of core ids, such as "0,2-3".
//
//go:noinline
func coreListSetting(field func(*Config) *[]int) settingSpec {
	return settingSpec{setInConfig: func(c *Config, i configItem) error {
		list, err := i.parseScalarAsString()
		if err != nil {
			return err
		}
		cores := cgroup.ParseCPUList(list)
		if cores == nil && list != "" {
			return fmt.Errorf("%q is no list of cores: write them like \"0,2-3\"", list)
		}
		*field(c) = cores
		return nil
	}}
}

// bridgeNetworkSetting returns a setting of the bridge network. After each setting it validates all settings of the bridge together.
//
//go:noinline
func bridgeNetworkSetting(set func(*Config, string) error) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[string](), setInConfig: func(c *Config, i configItem) error {
		value, err := i.parseScalarAsString()
		if err == nil {
			err = set(c, value)
		}
		if err != nil {
			return err
		}
		return c.Node.Networks.WithDefaults().Bridge.Validate()
	}}
}

func setNetworkPrefix(field *netip.Prefix, value string) (err error) {
	if *field, err = netip.ParsePrefix(value); err != nil {
		return fmt.Errorf("%q is not a network such as 172.26.64.0/20", value)
	}
	return nil
}

// invertedBooleanSetting returns a boolean setting whose default is true. Its field in the Config has the
// opposite meaning.
//
//go:noinline
func invertedBooleanSetting(field func(*Config) *bool) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[bool](), setInConfig: func(c *Config, i configItem) error {
		on, err := i.parseBoolean()
		*field(c) = err == nil && !on
		return err
	}}
}

// settingWarning means that the value of a setting was replaced by a stricter value, or has no
// effect in part. It is reported as a warning.
type settingWarning struct{ text string }

func (r *settingWarning) Error() string { return r.text }

func setMinTLSVersion(c *Config, i configItem) error {
	name, err := i.parseScalarAsString()
	if err != nil {
		return err
	}
	switch name {
	case "tls10", "tls11":
		c.TLS.MinVersion = tls.VersionTLS12
		return &settingWarning{name + " is not safe, tls12 is the least"}
	case "tls12":
		c.TLS.MinVersion = tls.VersionTLS12
	case "tls13":
		c.TLS.MinVersion = tls.VersionTLS13
	default:
		return errors.New("must be tls12 or tls13")
	}
	return nil
}

// setCipherSuites accepts the names of the cipher suites that Go considers secure. They apply to TLS 1.2: for TLS 1.3 Go
// chooses the suites.
func setCipherSuites(c *Config, i configItem) error {
	names, err := i.parseScalarAsString()
	if err != nil {
		return err
	}
	c.TLS.CipherSuites = nil
	for _, name := range splitCommaList(names) {
		at := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if at < 0 {
			return fmt.Errorf("%s is not known, or not safe", name)
		}
		c.TLS.CipherSuites = append(c.TLS.CipherSuites, tls.CipherSuites()[at].ID)
	}
	return nil
}

// maxHandshakeTimeout is the upper limit for TLSHandshakeTimeout, because clients are not
// authenticated during the TLS handshake.
const maxHandshakeTimeout = time.Minute

func setTLSHandshakeTimeout(c *Config, i configItem) error {
	d, err := i.parseDuration()
	if err != nil {
		return err
	}
	c.TLSHandshakeTimeout = d
	if d == 0 || d > maxHandshakeTimeout {
		c.TLSHandshakeTimeout = maxHandshakeTimeout
		return &settingWarning{fmt.Sprintf("%v is the most", maxHandshakeTimeout)}
	}
	return nil
}

// stringMapSetting returns a setting for a block whose settings are strings with names that users choose. Several such blocks
// are merged.
//
//go:noinline
func stringMapSetting(field func(*Config) *map[string]string) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[map[string]string](), setInConfig: func(c *Config, i configItem) error {
		texts, err := i.parseStringMap()
		if err != nil {
			return err
		}
		if m := field(c); *m == nil {
			*m = texts
		} else {
			maps.Copy(*m, texts)
		}
		return nil
	}}
}

const maxSettingNumber = 1 << 53

const maxUserID = 1<<32 - 2 // 1<<32-1 means "no user" for the kernel

// topLevelSettings are the settings at the top level of a file, by name.
var topLevelSettings = map[string]settingSpec{
	// Region of the node. [default: global]
	"region": stringSetting(func(c *Config) *string { return &c.Node.Region }),
	// Datacenter of the node. [default: dc1]
	"datacenter": stringSetting(func(c *Config) *string { return &c.Node.Datacenter }),
	// Name of the node. [default: the host name]
	"name": stringSetting(func(c *Config) *string { return &c.Node.Name }),
	// Directory of the state, the allocations and the sockets. [default: /var/lib/nomad-lite for root, else $XDG_STATE_HOME/nomad-lite]
	"data_dir": stringSetting(func(c *Config) *string { return &c.DataDir }),
	// Directory of the programs of plugins. [reload]
	"plugin_dir": stringSetting(func(c *Config) *string { return &c.PluginDir }),
	// Address on which the API listens, unless addresses.http is set. [default: 127.0.0.1]
	"bind_addr": stringSetting(func(c *Config) *string { return &c.BindAddr }),
	// Lowest level of log lines: trace, debug, info, warn or error. [type: string; default: info; reload]
	"log_level": {setInConfig: func(c *Config, i configItem) error {
		level, err := i.parseScalarAsString()
		if err == nil && hclog.LevelFromString(level) == hclog.NoLevel {
			err = errors.New("must be trace, debug, info, warn or error")
		}
		c.LogLevel = level
		return err
	}},
	// Each log line is a JSON object.
	"log_json": booleanSetting(func(c *Config) *bool { return &c.LogJSON }),
	// Log lines have the source file and line of their statement.
	"log_include_location": booleanSetting(func(c *Config) *bool { return &c.LogSourceLocation }),
	// SIGINT stops the tasks, or drains the node of a cluster, if there is a drain_on_shutdown block. Without it, tasks continue.
	"leave_on_interrupt": booleanSetting(func(c *Config) *bool { return &c.LeaveOnInterrupt }),
	// The same for SIGTERM.
	"leave_on_terminate": booleanSetting(func(c *Config) *bool { return &c.LeaveOnTerminate }),

	// Headers of each reply of the API.
	"http_api_response_headers": stringMapSetting(func(c *Config) *map[string]string { return &c.HTTPHeaders }),

	// Ports of the agent.
	"ports": {blockSettings: map[string]settingSpec{
		// Port of the API; 0 means any free port. [default: 4646]
		"http": wholeNumberSetting(0, 65535, func(c *Config) *int { c.HTTPPort = new(int); return c.HTTPPort }),
		"rpc":  {ignoredReason: noServersReason},
		"serf": {ignoredReason: noServersReason},
	}},
	// Addresses on which the agent listens.
	"addresses": {blockSettings: map[string]settingSpec{
		// Address on which the API listens. [default: bind_addr]
		"http": stringSetting(func(c *Config) *string { return &c.HTTPListenAddr }),
		"rpc":  {ignoredReason: noServersReason},
		"serf": {ignoredReason: noServersReason},
	}},
	// Addresses that other machines use.
	"advertise": {blockSettings: map[string]settingSpec{
		// Address of the API for other machines, with or without a port. [default: the address on which the API listens]
		"http": stringSetting(func(c *Config) *string { return &c.HTTPAdvertiseAddr }),
		"rpc":  {ignoredReason: noServersReason},
		"serf": {ignoredReason: noServersReason},
	}},
	// Access control.
	"acl": {blockSettings: map[string]settingSpec{
		// true: ACL tokens decide about each request, those of the agent itself or, on a node of a cluster, those of the servers. false requires no token of clients on this machine, which then have all rights of the agent. [type: bool; default: the agent requires its token]
		"enabled": {setInConfig: func(c *Config, i configItem) error {
			on, err := i.parseBoolean()
			c.DisableAccessControl, c.Cluster.AccessControl = err == nil && !on, err == nil && on
			c.AccessControlSource = fmt.Sprintf("%s:%d", i.sourceRange.Filename, i.sourceRange.Start.Line)
			return err
		}},
		"token_ttl":         {ignoredReason: tokenCacheReason},
		"policy_ttl":        {ignoredReason: tokenCacheReason},
		"role_ttl":          {ignoredReason: tokenCacheReason},
		"replication_token": {ignoredReason: noServersReason},
		// Minimum lifetime of an ACL token that expires. [default: 1m]
		"token_min_expiration_ttl": durationSetting(func(c *Config) *time.Duration { return &c.Tokens.MinExpirationTTL }),
		// Maximum lifetime of an ACL token that expires. [default: 24h]
		"token_max_expiration_ttl":     durationSetting(func(c *Config) *time.Duration { return &c.Tokens.MaxExpirationTTL }),
		"authentication_burst_limit":   {ignoredReason: noLoginReason},
		"authentication_rate_limit":    {ignoredReason: noLoginReason},
		"oidc_disable_pkce":            {ignoredReason: noLoginReason},
		"max_auth_token_requests":      {ignoredReason: noLoginReason},
		"max_auth_token_requests_time": {ignoredReason: noLoginReason},
	}},
	// TLS of the API, and of the connections to the servers of a cluster.
	"tls": {
		blockSettings: map[string]settingSpec{
			// The API is served with TLS on its port. A reload does not change it.
			"http": booleanSetting(func(c *Config) *bool { return &c.TLS.ServeHTTPS }),
			// PEM file of the authority that has signed the certificates of clients and servers. [reload]
			"ca_file": stringSetting(func(c *Config) *string { return &c.TLS.CAFile }),
			// PEM file of the certificate of the agent. [reload]
			"cert_file": stringSetting(func(c *Config) *string { return &c.TLS.CertFile }),
			// PEM file of its key. [reload]
			"key_file": stringSetting(func(c *Config) *string { return &c.TLS.KeyFile }),
			// The API rejects clients without a certificate of the authority. [reload]
			"verify_https_client": booleanSetting(func(c *Config) *bool { return &c.TLS.VerifyClient }),
			// Minimum version of TLS: tls12 or tls13. [type: string; default: tls12; reload]
			"tls_min_version": {setInConfig: setMinTLSVersion},
			// Cipher suites of TLS 1.2, separated by commas, of those that Go considers secure. [type: string; default: those of Go; reload]
			"tls_cipher_suites": {setInConfig: setCipherSuites},
			// The agent connects to the servers of its cluster with TLS.
			"rpc": booleanSetting(func(c *Config) *bool { return &c.Cluster.EncryptRPC }),
			// The certificate of a server must have the name `server.REGION.nomad`.
			"verify_server_hostname":          booleanSetting(func(c *Config) *bool { return &c.Cluster.VerifyServerHostname }),
			"rpc_upgrade_mode":                {ignoredReason: noServersReason},
			"tls_prefer_server_cipher_suites": {ignoredReason: "Go chooses the order of the cipher suites"},
		},
	},
	// Limits of the connections of clients.
	"limits": {blockSettings: map[string]settingSpec{
		// Maximum number of connections of one client. [default: 100 for a task, no limit for others]
		"http_max_conns_per_client": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.MaxHTTPConnsPerClient }),
		// Timeout of a TLS handshake, at most 1m. [type: duration; default: 5s]
		"https_handshake_timeout":  {setInConfig: setTLSHandshakeTimeout},
		"rpc_handshake_timeout":    {ignoredReason: noServersReason},
		"rpc_max_conns_per_client": {ignoredReason: noServersReason},
	}},
	// Metrics and traces.
	"telemetry": {blockSettings: telemetrySettings},
	// The unix socket of the API.
	"unix_sockets": {blockSettings: map[string]settingSpec{
		// Group whose members can use the socket, with all rights of the agent. [not in Nomad]
		"group": stringSetting(func(c *Config) *string { return &c.SocketGroup }),
		"user":  {ignoredReason: "the unix socket belongs to the user of the agent"},
		"mode":  {ignoredReason: "the mode of the unix socket is 0660 with a group, and 0600 without one"},
	}},
	// The web page.
	"ui": {blockSettings: map[string]settingSpec{
		// The agent serves the web page. [default: true]
		"enabled": invertedBooleanSetting(func(c *Config) *bool { return &c.DisableWebPage }),
		// Commands of Nomad can print addresses of the web page. [default: true]
		"show_cli_hints": invertedBooleanSetting(func(c *Config) *bool { return &c.HideWebPageURLs }),
		// A text at the top of each page.
		"label": {blockSettings: map[string]settingSpec{
			// The text.
			"text": stringSetting(func(c *Config) *string { return &c.WebPageLabel.Text }),
			// Its background, as a CSS colour. [default: the page's background]
			"background_color": stringSetting(func(c *Config) *string { return &c.WebPageLabel.BackgroundColor }),
			// Its colour, as a CSS colour. [default: the page's text colour]
			"text_color": stringSetting(func(c *Config) *string { return &c.WebPageLabel.TextColor }),
		}},
		"content_security_policy": {ignoredReason: "the policy of the web page is fixed"},
		"consul":                  {ignoredReason: noConsulReason},
		"vault":                   {ignoredReason: noVaultReason},
	}},
	// The API serves profiles of the agent and data of the machine.
	"enable_debug": booleanSetting(func(c *Config) *bool { return &c.EnableDebug }),

	// Attaches a hook to jobs; the label is the name of the hook. Several blocks are permitted. [type: block; reload; not in Nomad]
	"hook": {setInConfig: addOrReplaceHookRules},
	// The node and its tasks.
	"client": {blockSettings: clientSettings},
	// The scheduler of the agent. For a file that Nomad also reads, it decides whether the agent joins a cluster.
	"server": {blockSettings: serverSettings},

	// The audit log: who has requested what.
	"audit": {blockSettings: map[string]settingSpec{
		// The agent writes an audit log.
		"enabled": booleanSetting(func(c *Config) *bool { return &c.Audit.Enabled }),
		// A file to which the log is written; the label is a name. [type: block; default: one with the default settings]
		"sink": {setInConfig: addAuditSinks},
		// Requests that the log does not have; the label is a name. [type: block]
		"filter": {setInConfig: addAuditFilters},
	}},

	"autopilot":                   {ignoredReason: noServersReason},
	"consul":                      {ignoredReason: noConsulReason},
	"disable_anonymous_signature": {ignoredReason: "nomad-lite sends nothing to HashiCorp"},
	"disable_update_check":        {ignoredReason: "nomad-lite looks for no updates"},
	"enable_syslog":               {ignoredReason: logToStderrReason},
	"keyring":                     {ignoredReason: noServersReason},
	"license_path":                {ignoredReason: enterpriseOnlyReason},
	"log_file":                    {ignoredReason: logToStderrReason},
	"log_rotate_bytes":            {ignoredReason: logToStderrReason},
	"log_rotate_duration":         {ignoredReason: logToStderrReason},
	"log_rotate_max_files":        {ignoredReason: logToStderrReason},
	"reporting":                   {ignoredReason: enterpriseOnlyReason},
	// Connections to the servers of a cluster.
	"rpc":                          {blockSettings: rpcSettings},
	"sentinel":                     {ignoredReason: enterpriseOnlyReason},
	"syslog_facility":              {ignoredReason: logToStderrReason},
	"eventlog":                     {ignoredReason: "it is for Windows"},
	"vault":                        {ignoredReason: noVaultReason},
	"enable_template_token_lookup": {ignoredReason: noVaultReason},
}

// clientSettings are the settings of the client block.
var clientSettings = map[string]settingSpec{
	// Must be true: an agent runs tasks. [type: bool; default: true]
	"enabled": {setInConfig: func(_ *Config, i configItem) error {
		on, err := i.parseBoolean()
		if err == nil && !on {
			// false is rejected because an agent without a client would have no function.
			return errors.New("cannot be false here: running tasks is all that an agent does")
		}
		return err
	}},
	// Class of the node, for constraints.
	"node_class": stringSetting(func(c *Config) *string { return &c.Node.Class }),
	// Node pool of the node. [default: default]
	"node_pool": stringSetting(func(c *Config) *string { return &c.Node.Pool }),
	// Metadata of the node, for constraints and ${meta.KEY}. [reload]
	"meta": stringMapSetting(func(c *Config) *map[string]string { return &c.Node.Meta }),
	// Interface whose address is the address of the node and of its ports. [default: the interface of the default route]
	"network_interface": stringSetting(func(c *Config) *string { return &c.Node.Interface.Name }),
	// Jobs with services of the provider consul are not placed. [not in Nomad]
	"refuse_consul_services": booleanSetting(func(c *Config) *bool { return &c.Node.RefuseConsulServices }),
	// Speed of the interface in Mbit/s, which clients see. [default: the speed that the kernel reports]
	"network_speed": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.Interface.MBits }),
	// Maximum number of allocations at one time; 0 means no limit.
	"node_max_allocs": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.MaxAllocs }),
	// CPU of the node in MHz. [default: that of the machine]
	"cpu_total_compute": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.CPUMHzOverride }),
	// Memory of the node in MiB. [default: that of the machine]
	"memory_total_mb": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.MemoryMBOverride }),
	// Disk space of the node in MiB. [default: that of the file system of the data directory]
	"disk_total_mb": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.DiskMBOverride }),
	// Disk space in MiB that jobs get, whatever the size of the file system. [default: disk_total_mb]
	"disk_free_mb": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.FreeDiskMBOverride }),
	// First port that jobs get for a port without a number. [default: 20000]
	"min_dynamic_port": wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.MinDynamicPort }),
	// Last such port. [default: 32000]
	"max_dynamic_port": wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.MaxDynamicPort }),
	// First port for helper processes of drivers. [default: 14000]
	"client_min_port": wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.ClientMinPort }),
	// Last port for helper processes of drivers. [default: 14512]
	"client_max_port": wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.ClientMaxPort }),
	// Maximum of the kill_timeout of tasks. [default: 30s]
	"max_kill_timeout": durationSetting(func(c *Config) *time.Duration { return &c.MaxKillTimeout }),
	// Time between two checks of the disk. [default: 1m; reload]
	"gc_interval": durationSetting(func(c *Config) *time.Duration { return &c.GC.DiskCheckInterval }),
	// Maximum number of allocations on the disk, running ones included: above it, the agent removes the directories of the allocations that ended first. [default: 50; reload]
	"gc_max_allocs": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.GC.MaxAllocsOnDisk }),
	// Number of directories that are removed at the same time. [default: 2; reload]
	"gc_parallel_destroys": wholeNumberSetting(1, 1000, func(c *Config) *int {
		return &c.GC.MaxParallelRemovals
	}),
	// Usage of the file system in percent above which directories of ended allocations are removed. [default: 80; reload]
	"gc_disk_usage_threshold": percentSetting(func(c *Config) *float64 { return &c.GC.MaxDiskUsagePercent }),
	// Usage of the inodes in percent above which they are removed. [default: 70; reload]
	"gc_inode_usage_threshold": percentSetting(func(c *Config) *float64 { return &c.GC.MaxInodeUsagePercent }),
	// Time after the end of an allocation before which the two thresholds do not remove its directory. [default: 10m; reload; not in Nomad]
	"gc_disk_usage_min_age": durationSetting(func(c *Config) *time.Duration { return &c.GC.MinEndedTimeForDiskUsageGC }),
	// Resources of the machine that jobs do not get.
	"reserved": {blockSettings: map[string]settingSpec{
		// CPU in MHz. [reload]
		"cpu": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *uint64 { return &c.Node.Reserved.CPUMHz }),
		// Memory in MiB. [reload]
		"memory": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *uint64 { return &c.Node.Reserved.MemoryMB }),
		// Disk space in MiB. [reload]
		"disk": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *uint64 { return &c.Node.Reserved.DiskMB }),
		// Ports, such as 22,8000-8010. [type: string; reload]
		"reserved_ports": {setInConfig: func(c *Config, i configItem) (err error) {
			if c.Node.Reserved.Ports, err = i.parseScalarAsString(); err == nil {
				_, err = scheduler.ParsePortRanges(c.Node.Reserved.Ports)
			}
			return err
		}},
		// Cores, such as 0,2-3. [type: string; reload]
		"cores": coreListSetting(func(c *Config) *[]int { return &c.Node.Reserved.CoreIDs }),
	}},
	// Options of earlier versions of Nomad by name; see below. [type: block of strings]
	"options": {setInConfig: setLegacyOptions},
	// The agent stops its tasks before it exits; see leave_on_interrupt.
	"drain_on_shutdown": {
		initBlock: func(c *Config) { c.DrainOnExit = &DrainOnExit{} },
		blockSettings: map[string]settingSpec{
			// Time after which the remaining tasks are killed. [default: no limit, for the node of a cluster 1h]
			"deadline": durationSetting(func(c *Config) *time.Duration { return &c.DrainOnExit.Deadline }),
			// All allocations are stopped at the same time.
			"force": booleanSetting(func(c *Config) *bool { return &c.DrainOnExit.StopAllAtOnce }),
			// The allocations of system jobs are not stopped. It has an effect on the node of a cluster only.
			"ignore_system_jobs": booleanSetting(func(c *Config) *bool { return &c.DrainOnExit.IgnoreSystemJobs }),
		},
	},

	// User ids for tasks that name no user, if their driver supports that.
	"users": {blockSettings: map[string]settingSpec{
		// First id; -1 means that tasks get no such id. [default: 80000]
		"dynamic_user_min": wholeNumberSetting(-1, maxUserID, func(c *Config) *int { return &c.DynamicUserRange.Min }),
		// Last id. [default: 89999]
		"dynamic_user_max": wholeNumberSetting(-1, maxUserID, func(c *Config) *int { return &c.DynamicUserRange.Max }),
	}},

	// Downloads of artifacts.
	"artifact": {blockSettings: artifactSettings},
	// Templates.
	"template": {blockSettings: templateSettings},

	"bind_wildcard_default_host_network": {ignoredReason: "ports without host_network are reachable at each address of the machine that no host network has"},

	"alloc_dir":        {ignoredReason: "allocations are in the data directory"},
	"alloc_mounts_dir": {ignoredReason: "allocations are in the data directory"},
	// Groups in bridges reach their own ports at the address of the node. [default: true]
	"bridge_network_hairpin_mode": invertedBooleanSetting(func(c *Config) *bool { return &c.Node.Networks.Bridge.NoHairpin }),
	// Name of the bridge. [default: nomad]
	"bridge_network_name": bridgeNetworkSetting(func(c *Config, value string) error { c.Node.Networks.Bridge.Name = value; return nil }),
	// Network of the bridge. [default: 172.26.64.0/20]
	"bridge_network_subnet": bridgeNetworkSetting(func(c *Config, value string) error {
		return setNetworkPrefix(&c.Node.Networks.Bridge.IPv4Subnet, value)
	}),
	// Network of the bridge for IPv6. [default: no IPv6]
	"bridge_network_subnet_ipv6": bridgeNetworkSetting(func(c *Config, value string) error {
		return setNetworkPrefix(&c.Node.Networks.Bridge.IPv6Subnet, value)
	}),
	// Cgroup below which an agent of root makes the cgroups of tasks, relative to the mount point. [type: string; default: nomad, with cgroups v2 nomad.slice]
	"cgroup_parent": {setInConfig: func(c *Config, i configItem) (err error) {
		if c.CgroupParent, err = i.parseScalarAsString(); err == nil {
			c.CgroupParent = strings.Trim(c.CgroupParent, "/")
			err = cgroup.CheckParent(c.CgroupParent)
		}
		return err
	}},
	// Paths of the machine that tasks of exec and java see, and their paths for the tasks. [type: block of strings; default: Nomad's list]
	"chroot_env": {setInConfig: func(c *Config, i configItem) (err error) {
		if c.ChrootEnv, err = i.parseStringMap(); err == nil {
			err = allocdir.ValidateChrootEnv(c.ChrootEnv)
		}
		return err
	}},
	// Directory of the configurations of CNI networks. [default: /opt/cni/config]
	"cni_config_dir": stringSetting(func(c *Config) *string { return &c.Node.Networks.CNI.ConfigDir }),
	// Directories of CNI plugins, separated by colons. [type: string; default: /opt/cni/bin]
	"cni_path": {setInConfig: func(c *Config, i configItem) error {
		list, err := i.parseScalarAsString()
		c.Node.Networks.CNI.PluginDirs = filepath.SplitList(list)
		if slices.ContainsFunc(c.Node.Networks.CNI.PluginDirs, func(dir string) bool { return !filepath.IsAbs(dir) }) {
			return fmt.Errorf("%q has a directory that is not an absolute path: the agent would run programs of its working directory", list)
		}
		return err
	}},
	"cpu_disable_dmidecode": {ignoredReason: "the program dmidecode is not called"},
	// No client runs commands or actions in tasks, with any token.
	"disable_remote_exec":   booleanSetting(func(c *Config) *bool { return &c.DisableRemoteExec }),
	"fingerprint":           {ignoredReason: "it configures fingerprints of clouds, which are not taken here"},
	"gc_volumes_on_node_gc": {ignoredReason: oneNodeReason},
	// Names addresses of the machine for ports of jobs; the label is the name. Several blocks are permitted. [type: block]
	"host_network": {setInConfig: setHostNetworks},
	// Names a directory of the machine for jobs; the label is the name. Several blocks are permitted. [type: block; reload]
	"host_volume": {setInConfig: setHostVolumes},
	// Directory of the host volume plugins. [default: host_volume_plugins in the data directory]
	"host_volume_plugin_dir": absolutePathSetting(func(c *Config) *string { return &c.HostVolumePluginDir }),
	// Directory in which the plugin mkdir makes volumes. [default: host_volumes in the data directory]
	"host_volumes_dir": absolutePathSetting(func(c *Config) *string { return &c.HostVolumesDir }),
	// Token with which the node joins a cluster that requires one.
	"intro_token":             stringSetting(func(c *Config) *string { return &c.Cluster.IntroductionToken }),
	"log_rotate_max_files":    {ignoredReason: logToStderrReason},
	"no_host_uuid":            {ignoredReason: "the ID of the node is random, and stays in the data directory"},
	"nomad_service_discovery": {ignoredReason: "services of this machine are always registered here"},
	// Which address of its interface is the address of the node: ipv4 or ipv6. [type: string; default: ipv4, if the interface has one]
	"preferred_address_family": {setInConfig: func(c *Config, i configItem) (err error) {
		c.Node.Interface.AddressFamily, err = i.parseScalarAsString()
		if f := c.Node.Interface.AddressFamily; err == nil && f != "ipv4" && f != "ipv6" {
			err = errors.New("must be ipv4 or ipv6")
		}
		return err
	}},
	// Older place of telemetry.publish_node_metrics. [default: true, in Nomad false; reload]
	"publish_node_metrics": invertedBooleanSetting(func(c *Config) *bool { return &c.Telemetry.OmitNodeMetrics }),
	// Cores that tasks can reserve with cores, such as 0,2-3. Tasks without cores use the others, too. [type: string; default: all that are not in reserved.cores]
	"reservable_cores": coreListSetting(func(c *Config) *[]int { return &c.Node.ReservableCoreIDs }),
	// Older spelling of reservable_cores. [type: string]
	"reserveable_cores": coreListSetting(func(c *Config) *[]int { return &c.Node.ReservableCoreIDs }),
	"retry_interval":    {ignoredReason: retryReason},
	// Older form of server_join.retry_join.
	"retry_join": serverAddrsSetting(func(c *Config) *[]string { return &c.Cluster.RetryJoin }),
	"retry_max":  {ignoredReason: retryReason},
	// URL of the HTTP API of a server. [default: the addresses of the servers with the port 4646; not in Nomad]
	"server_http_addr": parsedSetting(newCheckedParser(configItem.parseScalarAsString, checkServerURL), func(c *Config) *string { return &c.Cluster.ServerHTTPAddr }),
	// Servers to join.
	"server_join": {blockSettings: serverJoinSettings},
	// Addresses of the servers of a cluster, with or without a port. With one or more, the agent is a node of the cluster.
	"servers":                         serverAddrsSetting(func(c *Config) *[]string { return &c.Cluster.Servers }),
	"start_join":                      {ignoredReason: "it is for servers"},
	"state_dir":                       {ignoredReason: "the state is in the data directory"},
	"allow_unsafe_driver_reattach":    {ignoredReason: "a driver finds its tasks again in any case, or reports that it cannot"},
	"disable_allocation_hook_metrics": {ignoredReason: noHookMetricsReason},
}

// serverSettings are the settings of the server block. Its garbage collection settings apply to the scheduler in the agent.
var serverSettings = map[string]settingSpec{
	// true means that the file is that of a Nomad server: the agent joins no cluster, and schedules for itself.
	"enabled": booleanSetting(func(c *Config) *bool { return &c.Cluster.ServerEnabled }),
	// Time between two garbage collections of jobs, evaluations, allocations and deployments. [default: 5m]
	"job_gc_interval": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.SweepInterval }),
	// Time after which an expired ACL token is removed. [default: 1h]
	"acl_token_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.Tokens.GCThreshold }),
	// Minimum age of dead jobs that are removed. [default: 4h]
	"job_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinDeadJobAge }),
	// Minimum age of ended evaluations and allocations that are removed. [default: 1h]
	"eval_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinEvalAndAllocAge }),
	// The same for batch jobs that are not dead. [default: 24h]
	"batch_eval_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinBatchEvalAndAllocAge }),
	// Minimum age of ended deployments that are removed. [default: 1h]
	"deployment_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinDeploymentAge }),
	// Maximum sum of the counts of a job's groups. [default: 50000]
	"job_max_count": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.JobLimits.MaxTotalCount }),
	// Maximum priority of a job, at most 32766. [default: 100]
	"job_max_priority": wholeNumberSetting(100, 32766, func(c *Config) *int { return &c.JobLimits.MaxPriority }),
	// Priority of a job that names none, at most job_max_priority. [default: 50]
	"job_default_priority": wholeNumberSetting(50, 32766, func(c *Config) *int { return &c.JobLimits.DefaultPriority }),
	// Number of newest versions of a job that are kept, besides tagged ones and the newest stable one. [default: 6]
	"job_tracked_versions": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.JobLimits.TrackedVersions }),
	// Maximum size of a job file that is stored with its job; 0 stores none. [type: size; default: 1MB]
	"job_max_source_size": {setInConfig: func(c *Config, i configItem) error {
		size, err := i.parseByteSize()
		c.JobLimits.MaxSourceBytes = int(size)
		if size == 0 {
			c.JobLimits.MaxSourceBytes = -1
		}
		return err
	}},
	// Searches for a part of a name.
	"search": {blockSettings: map[string]settingSpec{
		// The API serves such searches. [default: true]
		"fuzzy_enabled": invertedBooleanSetting(func(c *Config) *bool { return &c.Search.DisableFuzzy }),
		// Maximum number of objects of a kind that are searched. [default: no limit, in Nomad 20]
		"limit_query": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.Search.MaxObjects }),
		// Maximum number of results of a kind. [default: 20, in Nomad 100]
		"limit_results": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.Search.MaxMatches }),
		// Minimum number of characters of the text. [default: 2]
		"min_term_length": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.Search.MinTextLen }),
	}},
	// The API serves the event stream, which the web page and nomad-lite top also use. [default: true]
	"enable_event_broker": invertedBooleanSetting(func(c *Config) *bool { return &c.DisableEventStream }),
	// The scheduler's configuration until a request changes it.
	"default_scheduler_config": {blockSettings: map[string]settingSpec{
		// Tasks may use more memory than is reserved for them, up to memory_max.
		"memory_oversubscription_enabled": booleanSetting(func(c *Config) *bool { return &c.Scheduler.MemoryOversubscription }),
		"scheduler_algorithm":             {ignoredReason: "there is one node to place allocations on"},
		// The API registers, dispatches, scales and reverts no job.
		"reject_job_registration": booleanSetting(func(c *Config) *bool { return &c.Scheduler.RejectJobRegistration }),
		// Evaluations stay pending: nothing is placed and no job is stopped. Tasks that exit still restart.
		"pause_eval_broker": booleanSetting(func(c *Config) *bool { return &c.Scheduler.PauseEvalBroker }),
		// Which jobs may stop allocations of other jobs whose priority is lower by 10 or more, if the node has no room.
		"preemption_config": {blockSettings: map[string]settingSpec{
			// System jobs may. [default: true]
			"system_scheduler_enabled": invertedBooleanSetting(func(c *Config) *bool { return &c.Scheduler.NoSystemPreemption }),
			// Sysbatch jobs may.
			"sysbatch_scheduler_enabled": booleanSetting(func(c *Config) *bool { return &c.Scheduler.SysbatchPreemption }),
			// Batch jobs may.
			"batch_scheduler_enabled": booleanSetting(func(c *Config) *bool { return &c.Scheduler.BatchPreemption }),
			// Service jobs may.
			"service_scheduler_enabled": booleanSetting(func(c *Config) *bool { return &c.Scheduler.ServicePreemption }),
		}},
	}},
	// Age at which the key of variables and workload identities is replaced by a new one. [default: never]
	"root_key_rotation_threshold": durationSetting(func(c *Config) *time.Duration { return &c.KeyLifetime.RotateAfter }),
	// How long a replaced key stays at least; it stays while something is sealed with it, or a task has a valid token of it. [default: 1h with root_key_rotation_threshold, else forever]
	"root_key_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.KeyLifetime.RemoveAfter }),
	// Time between two checks of the age of the keys. [default: 10m]
	"root_key_gc_interval": durationSetting(func(c *Config) *time.Duration { return &c.KeyLifetime.CheckInterval }),
	// Number of latest changes whose events the event stream keeps. [default: 100]
	"event_buffer_size": wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.EventBufferSize }),
	// URL below which other services find the public keys of workload identities. It opens these two routes to all clients. [type: string]
	"oidc_issuer": {setInConfig: setOIDCIssuer},
}

func init() {
	for reason, names := range map[string][]string{
		noServersReason: {
			"authoritative_region", "bootstrap_expect", "client_introduction", "data_dir", "encrypt", "non_voting_server", "plan_rejection_tracker",
			"protocol_version", "raft_boltdb", "raft_logstore", "raft_multiplier", "raft_protocol", "raft_snapshot_interval", "raft_snapshot_threshold",
			"raft_trailing_logs", "redundancy_zone", "rejoin_after_leave", "retry_interval", "retry_join", "retry_max", "server_join",
			"start_join", "start_timeout", "upgrade_version",
		},
		noHeartbeatReason:    {"failover_heartbeat_ttl", "heartbeat_grace", "max_client_disconnect", "max_heartbeats_per_second", "min_heartbeat_ttl"},
		oneNodeReason:        {"node_gc_threshold", "node_threshold", "node_window"},
		oneSchedulerReason:   {"enabled_schedulers", "num_schedulers"},
		noCSIReason:          {"csi_plugin_gc_threshold", "csi_volume_claim_gc_interval", "csi_volume_claim_gc_threshold"},
		enterpriseOnlyReason: {"license_path", "license_env"},
		notInNomadReason:     {"deregistration_gc_threshold", "system_scheduler_enabled", "volumes_gc_threshold"},
		"the scheduler watches its deployments without queries": {"deployment_query_rate_limit"},
	} {
		for _, name := range names {
			serverSettings[name] = settingSpec{ignoredReason: reason}
		}
	}
}

// setOIDCIssuer stores the URL below which other services find the public keys of workload identities.
func setOIDCIssuer(c *Config, i configItem) error {
	text, err := i.parseScalarAsString()
	if err != nil {
		return err
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not an address like https://nomad.example.com", text)
	}
	c.OIDCIssuer = text
	return nil
}

// setLegacyOptions stores the supported options of the block "options", which older versions of Nomad used.
func setLegacyOptions(c *Config, i configItem) error {
	options, err := i.parseStringMap()
	if err != nil {
		return err
	}
	var unknownOptions []string
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := options[name]
		switch name {
		// The driver raw_exec is enabled. [type: bool; default: if only root can submit jobs]
		case "driver.raw_exec.enable":
			c.LegacyEnableRawExec = new(isTrue(value))
		// Drivers that the agent starts, separated by commas. [type: string; default: all]
		case "driver.allowlist", "driver.whitelist":
			c.DriverAllowlist = splitCommaList(value)
		// Drivers that the agent does not start. [type: string]
		case "driver.denylist", "driver.blacklist":
			c.DriverDenylist = splitCommaList(value)
		// Variables of the agent that tasks do not inherit. [type: string; default: tokens and credentials]
		case "env.denylist", "env.blacklist":
			c.EnvDenylist = append([]string{}, splitCommaList(value)...) // not nil if the list is empty, because nil means the default
		// Variables of the agent that tasks inherit, less those of env.denylist. [type: string; default: all; not in Nomad]
		case "env.allowlist":
			c.EnvAllowlist = append([]string{}, splitCommaList(value)...)
		// Users that tasks cannot have. [type: string; default: root,Administrator]
		case "user.denylist", "user.blacklist":
			c.UserDenylist = splitCommaList(value)
		// Drivers to which user.denylist applies. [type: string; default: exec,qemu,java]
		case "user.checked_drivers":
			c.UserCheckedDrivers = splitCommaList(value)
		// The agent gives directories of allocations the modes of Nomad if it cannot close them to other accounts. [type: bool; not in Nomad]
		case "alloc_dir.nomad_modes":
			c.FallBackToNomadFileModes = isTrue(value)
		// Set-user-ID programs and devices in directories of allocations have an effect. [type: bool; not in Nomad]
		case "alloc_dir.allow_setuid":
			c.AllowSetuidAndDevicesInAllocs = isTrue(value)
		// Address of the Docker engine. This option and the next ones are the configuration of the driver docker if no plugin block configures it. [type: string]
		case "docker.endpoint":
			c.setDockerOption(value, "endpoint")
		// File with credentials of registries, as ~/.docker/config.json. [type: string]
		case "docker.auth.config":
			c.setDockerOption(value, "auth", "config")
		// Suffix of the program docker-credential-… that has credentials. [type: string]
		case "docker.auth.helper":
			c.setDockerOption(value, "auth", "helper")
		// PEM file of the certificate for the engine. [type: string]
		case "docker.tls.cert":
			c.setDockerOption(value, "tls", "cert")
		// PEM file of its key. [type: string]
		case "docker.tls.key":
			c.setDockerOption(value, "tls", "key")
		// PEM file of the authority of the engine. [type: string]
		case "docker.tls.ca":
			c.setDockerOption(value, "tls", "ca")
		// The images of ended tasks are removed. [type: bool]
		case "docker.cleanup.image":
			c.setDockerOption(isTrue(value), "gc", "image")
		// How long after the last use. [type: string]
		case "docker.cleanup.image.delay":
			c.setDockerOption(value, "gc", "image_delay")
		// The containers of ended tasks are removed. [type: bool]
		case "docker.cleanup.container":
			c.setDockerOption(isTrue(value), "gc", "container")
		// Tasks can mount directories of the machine. [type: bool]
		case "docker.volumes.enabled":
			c.setDockerOption(isTrue(value), "volumes", "enabled")
		// SELinux label of these. [type: string]
		case "docker.volumes.selinuxlabel":
			c.setDockerOption(value, "volumes", "selinuxlabel")
		// Tasks can be privileged. [type: bool]
		case "docker.privileged.enabled":
			c.setDockerOption(isTrue(value), "allow_privileged")
		// Capabilities that tasks can have, separated by commas. [type: string]
		case "docker.caps.allowlist", "docker.caps.whitelist":
			var caps []any
			for _, name := range splitCommaList(value) {
				caps = append(caps, name)
			}
			c.setDockerOption(caps, "allow_caps")
		default:
			unknownOptions = append(unknownOptions, name)
		}
	}
	if len(unknownOptions) > 0 {
		return &unknownLegacyOptionsError{unknownOptions}
	}
	return nil
}

// setDockerOption sets an option of the driver docker, in a block of its configuration if path has two elements.
func (c *Config) setDockerOption(value any, path ...string) {
	if c.LegacyDockerOptions == nil {
		c.LegacyDockerOptions = make(map[string]any)
	}
	block := c.LegacyDockerOptions
	if len(path) > 1 {
		if block[path[0]] == nil {
			block[path[0]] = make(map[string]any)
		}
		block = block[path[0]].(map[string]any)
	}
	block[path[len(path)-1]] = value
}

// isTrue reports whether the value of a legacy option means true.
func isTrue(value string) bool { return value == "1" || strings.EqualFold(value, "true") }

// unknownLegacyOptionsError names legacy options that have no effect. applySettings reports each as a warning.
type unknownLegacyOptionsError struct{ optionNames []string }

func (e *unknownLegacyOptionsError) Error() string {
	return "no such option: " + strings.Join(e.optionNames, ", ")
}
