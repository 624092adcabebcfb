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
	noConsulReason       = "there is no Consul here"
	noVaultReason        = "there is no Vault here"
	enterpriseOnlyReason = "it belongs to Nomad Enterprise"
	notImplementedReason = "this build of nomad-lite cannot do that"
	notNeededReason      = "nomad-lite does not need it"
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
	"region":     stringSetting(func(c *Config) *string { return &c.Node.Region }),
	"datacenter": stringSetting(func(c *Config) *string { return &c.Node.Datacenter }),
	"name":       stringSetting(func(c *Config) *string { return &c.Node.Name }),
	"data_dir":   stringSetting(func(c *Config) *string { return &c.DataDir }),
	"plugin_dir": stringSetting(func(c *Config) *string { return &c.PluginDir }),
	"bind_addr":  stringSetting(func(c *Config) *string { return &c.BindAddr }),
	"log_level": {setInConfig: func(c *Config, i configItem) error {
		level, err := i.parseScalarAsString()
		if err == nil && hclog.LevelFromString(level) == hclog.NoLevel {
			err = errors.New("must be trace, debug, info, warn or error")
		}
		c.LogLevel = level
		return err
	}},
	"log_json":             booleanSetting(func(c *Config) *bool { return &c.LogJSON }),
	"log_include_location": booleanSetting(func(c *Config) *bool { return &c.LogSourceLocation }),
	"leave_on_interrupt":   booleanSetting(func(c *Config) *bool { return &c.LeaveOnInterrupt }),
	"leave_on_terminate":   booleanSetting(func(c *Config) *bool { return &c.LeaveOnTerminate }),

	"http_api_response_headers": stringMapSetting(func(c *Config) *map[string]string { return &c.HTTPHeaders }),

	"ports": {blockSettings: map[string]settingSpec{
		"http": wholeNumberSetting(0, 65535, func(c *Config) *int { c.HTTPPort = new(int); return c.HTTPPort }),
		"rpc":  {ignoredReason: noServersReason},
		"serf": {ignoredReason: noServersReason},
	}},
	"addresses": {blockSettings: map[string]settingSpec{
		"http": stringSetting(func(c *Config) *string { return &c.HTTPListenAddr }),
		"rpc":  {ignoredReason: noServersReason},
		"serf": {ignoredReason: noServersReason},
	}},
	"advertise": {blockSettings: map[string]settingSpec{
		"http": stringSetting(func(c *Config) *string { return &c.HTTPAdvertiseAddr }),
		"rpc":  {ignoredReason: noServersReason},
		"serf": {ignoredReason: noServersReason},
	}},
	"acl": {blockSettings: map[string]settingSpec{
		"enabled": {setInConfig: func(c *Config, i configItem) error {
			on, err := i.parseBoolean()
			c.DisableAccessControl, c.Cluster.AccessControl = err == nil && !on, err == nil && on
			return err
		}},
		"token_ttl":                    {ignoredReason: notNeededReason},
		"policy_ttl":                   {ignoredReason: notNeededReason},
		"role_ttl":                     {ignoredReason: notNeededReason},
		"replication_token":            {ignoredReason: noServersReason},
		"token_min_expiration_ttl":     {ignoredReason: notNeededReason},
		"token_max_expiration_ttl":     {ignoredReason: notNeededReason},
		"authentication_burst_limit":   {ignoredReason: notNeededReason},
		"authentication_rate_limit":    {ignoredReason: notNeededReason},
		"oidc_disable_pkce":            {ignoredReason: notNeededReason},
		"max_auth_token_requests":      {ignoredReason: notNeededReason},
		"max_auth_token_requests_time": {ignoredReason: notNeededReason},
	}},
	"tls": {
		blockSettings: map[string]settingSpec{
			"http":                            booleanSetting(func(c *Config) *bool { return &c.TLS.ServeHTTPS }),
			"ca_file":                         stringSetting(func(c *Config) *string { return &c.TLS.CAFile }),
			"cert_file":                       stringSetting(func(c *Config) *string { return &c.TLS.CertFile }),
			"key_file":                        stringSetting(func(c *Config) *string { return &c.TLS.KeyFile }),
			"verify_https_client":             booleanSetting(func(c *Config) *bool { return &c.TLS.VerifyClient }),
			"tls_min_version":                 {setInConfig: setMinTLSVersion},
			"tls_cipher_suites":               {setInConfig: setCipherSuites},
			"rpc":                             booleanSetting(func(c *Config) *bool { return &c.Cluster.EncryptRPC }),
			"verify_server_hostname":          booleanSetting(func(c *Config) *bool { return &c.Cluster.VerifyServerHostname }),
			"rpc_upgrade_mode":                {ignoredReason: noServersReason},
			"tls_prefer_server_cipher_suites": {ignoredReason: notNeededReason},
		},
	},
	"limits": {blockSettings: map[string]settingSpec{
		"http_max_conns_per_client": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.MaxHTTPConnsPerClient }),
		"https_handshake_timeout":   {setInConfig: setTLSHandshakeTimeout},
		"rpc_handshake_timeout":     {ignoredReason: noServersReason},
		"rpc_max_conns_per_client":  {ignoredReason: noServersReason},
	}},
	"telemetry": {blockSettings: telemetrySettings},
	"unix_sockets": {blockSettings: map[string]settingSpec{
		"group": stringSetting(func(c *Config) *string { return &c.SocketGroup }),
		"user":  {ignoredReason: "the unix socket belongs to the user of the agent"},
		"mode":  {ignoredReason: "the mode of the unix socket is 0660 with a group, and 0600 without one"},
	}},
	"ui": {blockSettings: map[string]settingSpec{
		"enabled":                 invertedBooleanSetting(func(c *Config) *bool { return &c.DisableWebPage }),
		"show_cli_hints":          invertedBooleanSetting(func(c *Config) *bool { return &c.HideWebPageURLs }),
		"label":                   {ignoredReason: notImplementedReason},
		"content_security_policy": {ignoredReason: "the policy of the web page is fixed"},
		"consul":                  {ignoredReason: noConsulReason},
		"vault":                   {ignoredReason: noVaultReason},
	}},
	"enable_debug": booleanSetting(func(c *Config) *bool { return &c.EnableDebug }),

	"hook":   {setInConfig: addOrReplaceHookRules},
	"client": {blockSettings: clientSettings},
	"server": {blockSettings: serverSettings},

	"audit":                        {ignoredReason: enterpriseOnlyReason},
	"autopilot":                    {ignoredReason: noServersReason},
	"consul":                       {ignoredReason: noConsulReason},
	"disable_anonymous_signature":  {ignoredReason: notNeededReason},
	"disable_update_check":         {ignoredReason: notNeededReason},
	"enable_syslog":                {ignoredReason: "the log is written to standard error; systemd passes it to the journal"},
	"keyring":                      {ignoredReason: noServersReason},
	"license_path":                 {ignoredReason: enterpriseOnlyReason},
	"log_file":                     {ignoredReason: "the log is written to standard error; systemd passes it to the journal"},
	"log_rotate_bytes":             {ignoredReason: "the log is written to standard error; systemd passes it to the journal"},
	"log_rotate_duration":          {ignoredReason: "the log is written to standard error; systemd passes it to the journal"},
	"log_rotate_max_files":         {ignoredReason: "the log is written to standard error; systemd passes it to the journal"},
	"reporting":                    {ignoredReason: enterpriseOnlyReason},
	"rpc":                          {blockSettings: rpcSettings},
	"sentinel":                     {ignoredReason: enterpriseOnlyReason},
	"syslog_facility":              {ignoredReason: "the log is written to standard error; systemd passes it to the journal"},
	"eventlog":                     {ignoredReason: notNeededReason},
	"vault":                        {ignoredReason: noVaultReason},
	"enable_template_token_lookup": {ignoredReason: noVaultReason},
}

// clientSettings are the settings of the client block.
var clientSettings = map[string]settingSpec{
	"enabled": {setInConfig: func(_ *Config, i configItem) error {
		on, err := i.parseBoolean()
		if err == nil && !on {
			// false is rejected because an agent without a client would have no function.
			return errors.New("cannot be false here: running tasks is all that an agent does")
		}
		return err
	}},
	"node_class":             stringSetting(func(c *Config) *string { return &c.Node.Class }),
	"node_pool":              stringSetting(func(c *Config) *string { return &c.Node.Pool }),
	"meta":                   stringMapSetting(func(c *Config) *map[string]string { return &c.Node.Meta }),
	"network_interface":      stringSetting(func(c *Config) *string { return &c.Node.Interface.Name }),
	"refuse_consul_services": booleanSetting(func(c *Config) *bool { return &c.Node.RefuseConsulServices }),
	"network_speed":          wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.Interface.MBits }),
	"node_max_allocs":        wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.MaxAllocs }),
	"cpu_total_compute":      wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.CPUMHzOverride }),
	"memory_total_mb":        wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.MemoryMBOverride }),
	"disk_total_mb":          wholeNumberSetting(0, maxSettingNumber, func(c *Config) *int { return &c.Node.DiskMBOverride }),
	"min_dynamic_port":       wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.MinDynamicPort }),
	"max_dynamic_port":       wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.MaxDynamicPort }),
	"client_min_port":        wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.ClientMinPort }),
	"client_max_port":        wholeNumberSetting(1, 65535, func(c *Config) *int { return &c.Node.ClientMaxPort }),
	"max_kill_timeout":       durationSetting(func(c *Config) *time.Duration { return &c.MaxKillTimeout }),
	"gc_interval":            durationSetting(func(c *Config) *time.Duration { return &c.GC.DiskCheckInterval }),
	"gc_max_allocs":          wholeNumberSetting(1, maxSettingNumber, func(c *Config) *int { return &c.GC.MaxAllocsOnDisk }),
	"gc_parallel_destroys": wholeNumberSetting(1, 1000, func(c *Config) *int {
		return &c.GC.MaxParallelRemovals
	}),
	"gc_disk_usage_threshold":  percentSetting(func(c *Config) *float64 { return &c.GC.MaxDiskUsagePercent }),
	"gc_inode_usage_threshold": percentSetting(func(c *Config) *float64 { return &c.GC.MaxInodeUsagePercent }),
	"gc_disk_usage_min_age":    durationSetting(func(c *Config) *time.Duration { return &c.GC.MinEndedTimeForDiskUsageGC }),
	"reserved": {blockSettings: map[string]settingSpec{
		"cpu":    wholeNumberSetting(0, maxSettingNumber, func(c *Config) *uint64 { return &c.Node.Reserved.CPUMHz }),
		"memory": wholeNumberSetting(0, maxSettingNumber, func(c *Config) *uint64 { return &c.Node.Reserved.MemoryMB }),
		"disk":   wholeNumberSetting(0, maxSettingNumber, func(c *Config) *uint64 { return &c.Node.Reserved.DiskMB }),
		"reserved_ports": {setInConfig: func(c *Config, i configItem) (err error) {
			if c.Node.Reserved.Ports, err = i.parseScalarAsString(); err == nil {
				_, err = scheduler.ParsePortRanges(c.Node.Reserved.Ports)
			}
			return err
		}},
		"cores": {setInConfig: func(c *Config, i configItem) error {
			list, err := i.parseScalarAsString()
			if err != nil {
				return err
			}
			if c.Node.Reserved.CoreIDs = cgroup.ParseCPUList(list); c.Node.Reserved.CoreIDs == nil && list != "" {
				return fmt.Errorf("%q is no list of cores: write them like \"0,2-3\"", list)
			}
			return nil
		}},
	}},
	"options": {setInConfig: setLegacyOptions},
	"drain_on_shutdown": {
		initBlock: func(c *Config) { c.DrainOnExit = &DrainOnExit{} },
		blockSettings: map[string]settingSpec{
			"deadline":           durationSetting(func(c *Config) *time.Duration { return &c.DrainOnExit.Deadline }),
			"force":              booleanSetting(func(c *Config) *bool { return &c.DrainOnExit.StopAllAtOnce }),
			"ignore_system_jobs": booleanSetting(func(c *Config) *bool { return &c.DrainOnExit.IgnoreSystemJobs }),
		},
	},

	"users": {blockSettings: map[string]settingSpec{
		"dynamic_user_min": wholeNumberSetting(-1, maxUserID, func(c *Config) *int { return &c.DynamicUserRange.Min }),
		"dynamic_user_max": wholeNumberSetting(-1, maxUserID, func(c *Config) *int { return &c.DynamicUserRange.Max }),
	}},

	"artifact": {blockSettings: artifactSettings},
	"template": {blockSettings: templateSettings},

	"alloc_dir":                   {ignoredReason: "allocations are in the data directory"},
	"alloc_mounts_dir":            {ignoredReason: "allocations are in the data directory"},
	"bridge_network_hairpin_mode": invertedBooleanSetting(func(c *Config) *bool { return &c.Node.Networks.Bridge.NoHairpin }),
	"bridge_network_name":         bridgeNetworkSetting(func(c *Config, value string) error { c.Node.Networks.Bridge.Name = value; return nil }),
	"bridge_network_subnet": bridgeNetworkSetting(func(c *Config, value string) error {
		return setNetworkPrefix(&c.Node.Networks.Bridge.IPv4Subnet, value)
	}),
	"bridge_network_subnet_ipv6": bridgeNetworkSetting(func(c *Config, value string) error {
		return setNetworkPrefix(&c.Node.Networks.Bridge.IPv6Subnet, value)
	}),
	"cgroup_parent": {ignoredReason: notImplementedReason},
	"chroot_env": {setInConfig: func(c *Config, i configItem) (err error) {
		if c.ChrootEnv, err = i.parseStringMap(); err == nil {
			err = allocdir.ValidateChrootEnv(c.ChrootEnv)
		}
		return err
	}},
	"cni_config_dir": stringSetting(func(c *Config) *string { return &c.Node.Networks.CNI.ConfigDir }),
	"cni_path": {setInConfig: func(c *Config, i configItem) error {
		list, err := i.parseScalarAsString()
		c.Node.Networks.CNI.PluginDirs = filepath.SplitList(list)
		if slices.ContainsFunc(c.Node.Networks.CNI.PluginDirs, func(dir string) bool { return !filepath.IsAbs(dir) }) {
			return fmt.Errorf("%q has a directory that is not an absolute path: the agent would run programs of its working directory", list)
		}
		return err
	}},
	"cpu_disable_dmidecode":           {ignoredReason: notNeededReason},
	"disable_remote_exec":             booleanSetting(func(c *Config) *bool { return &c.Cluster.DisableRemoteExec }),
	"fingerprint":                     {ignoredReason: notNeededReason},
	"gc_volumes_on_node_gc":           {ignoredReason: noServersReason},
	"host_network":                    {setInConfig: setHostNetworks},
	"host_volume":                     {setInConfig: setHostVolumes},
	"host_volume_plugin_dir":          absolutePathSetting(func(c *Config) *string { return &c.HostVolumePluginDir }),
	"host_volumes_dir":                absolutePathSetting(func(c *Config) *string { return &c.HostVolumesDir }),
	"intro_token":                     stringSetting(func(c *Config) *string { return &c.Cluster.IntroductionToken }),
	"log_rotate_max_files":            {ignoredReason: notNeededReason},
	"no_host_uuid":                    {ignoredReason: notNeededReason},
	"nomad_service_discovery":         {ignoredReason: "services of this machine are always registered here"},
	"preferred_address_family":        {ignoredReason: notImplementedReason},
	"publish_node_metrics":            {ignoredReason: notImplementedReason},
	"reserveable_cores":               {ignoredReason: notImplementedReason},
	"reservable_cores":                {ignoredReason: notImplementedReason},
	"retry_interval":                  {ignoredReason: retryReason},
	"retry_join":                      serverAddrsSetting(func(c *Config) *[]string { return &c.Cluster.RetryJoin }),
	"retry_max":                       {ignoredReason: retryReason},
	"server_http_addr":                parsedSetting(newCheckedParser(configItem.parseScalarAsString, checkServerURL), func(c *Config) *string { return &c.Cluster.ServerHTTPAddr }),
	"server_join":                     {blockSettings: serverJoinSettings},
	"servers":                         serverAddrsSetting(func(c *Config) *[]string { return &c.Cluster.Servers }),
	"start_join":                      {ignoredReason: "it is for servers"},
	"state_dir":                       {ignoredReason: "the state is in the data directory"},
	"allow_unsafe_driver_reattach":    {ignoredReason: notNeededReason},
	"disable_allocation_hook_metrics": {ignoredReason: notNeededReason},
}

// serverSettings are the settings of the server block. Its garbage collection settings apply to the scheduler in the agent.
var serverSettings = map[string]settingSpec{
	"enabled":                 booleanSetting(func(c *Config) *bool { return &c.Cluster.ServerEnabled }),
	"job_gc_interval":         durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.SweepInterval }),
	"job_gc_threshold":        durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinDeadJobAge }),
	"eval_gc_threshold":       durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinEvalAndAllocAge }),
	"batch_eval_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinBatchEvalAndAllocAge }),
	"deployment_gc_threshold": durationSetting(func(c *Config) *time.Duration { return &c.SchedulerGC.MinDeploymentAge }),
	"oidc_issuer":             {setInConfig: setOIDCIssuer},
}

func init() {
	for _, name := range []string{
		"acl_token_gc_threshold", "authoritative_region", "bootstrap_expect", "client_introduction", "csi_plugin_gc_threshold",
		"csi_volume_claim_gc_interval", "csi_volume_claim_gc_threshold", "data_dir", "default_scheduler_config", "deployment_query_rate_limit",
		"enable_event_broker", "enabled_schedulers", "encrypt", "event_buffer_size", "failover_heartbeat_ttl", "heartbeat_grace",
		"job_default_priority", "job_max_count", "job_max_priority", "job_max_source_size", "job_tracked_versions", "license_path",
		"license_env", "max_client_disconnect", "max_heartbeats_per_second", "min_heartbeat_ttl", "node_gc_threshold",
		"node_threshold", "node_window", "non_voting_server", "num_schedulers", "plan_rejection_tracker", "protocol_version",
		"raft_boltdb", "raft_logstore", "raft_multiplier", "raft_protocol", "raft_snapshot_interval", "raft_snapshot_threshold",
		"raft_trailing_logs", "redundancy_zone", "rejoin_after_leave", "retry_interval", "retry_join", "retry_max",
		"root_key_gc_interval", "root_key_gc_threshold", "root_key_rotation_threshold", "search", "server_join", "start_join",
		"start_timeout", "system_scheduler_enabled", "upgrade_version", "volumes_gc_threshold", "deregistration_gc_threshold",
	} {
		serverSettings[name] = settingSpec{ignoredReason: noServersReason}
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
		case "driver.raw_exec.enable":
			c.LegacyEnableRawExec = new(isTrue(value))
		case "driver.allowlist", "driver.whitelist":
			c.DriverAllowlist = splitCommaList(value)
		case "driver.denylist", "driver.blacklist":
			c.DriverDenylist = splitCommaList(value)
		case "env.denylist", "env.blacklist":
			c.EnvDenylist = append([]string{}, splitCommaList(value)...) // not nil if the list is empty, because nil means the default
		case "env.allowlist":
			c.EnvAllowlist = append([]string{}, splitCommaList(value)...)
		case "user.denylist", "user.blacklist":
			c.UserDenylist = splitCommaList(value)
		case "user.checked_drivers":
			c.UserCheckedDrivers = splitCommaList(value)
		case "alloc_dir.nomad_modes":
			c.FallBackToNomadFileModes = isTrue(value)
		case "alloc_dir.allow_setuid":
			c.AllowSetuidAndDevicesInAllocs = isTrue(value)
		default:
			unknownOptions = append(unknownOptions, name)
		}
	}
	if len(unknownOptions) > 0 {
		return &unknownLegacyOptionsError{unknownOptions}
	}
	return nil
}

// isTrue reports whether the value of a legacy option means true.
func isTrue(value string) bool { return value == "1" || strings.EqualFold(value, "true") }

// unknownLegacyOptionsError names legacy options that have no effect. applySettings reports each as a warning.
type unknownLegacyOptionsError struct{ optionNames []string }

func (e *unknownLegacyOptionsError) Error() string {
	return "no such option: " + strings.Join(e.optionNames, ", ")
}
