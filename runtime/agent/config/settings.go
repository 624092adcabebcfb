package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
)

// setting describes a setting that the agent knows. Exactly one of set, block and ignored is set.
type setting struct {
	set       func(*Config, item) error
	block     map[string]setting
	initBlock func(*Config) // called when the block is read, even if the block is empty
	ignored   string        // reason why the setting has no effect
}

// Reasons why settings are ignored, for warnings.
const (
	noServers      = "there are no servers here, this agent decides for itself"
	noConsul       = "there is no Consul here"
	noVault        = "there is no Vault here"
	enterpriseOnly = "it belongs to Nomad Enterprise"
	notYet         = "this build of nomad-lite cannot do that"
	notNeeded      = "nomad-lite does not need it"
	metricsPulled  = "metrics are not sent: they are there to be fetched, from /v1/metrics"
)

// set and the other functions that return settings are not inlined: inlining would create a closure for
// each setting, together 33 kB.
//
//go:noinline
func set[T any](read func(item) (T, error), field func(*Config) *T) setting {
	return setting{set: func(c *Config, i item) error {
		v, err := read(i)
		if err == nil {
			*field(c) = v
		}
		return err
	}}
}

func text(field func(*Config) *string) setting     { return set(item.text, field) }
func boolean(field func(*Config) *bool) setting    { return set(item.boolean, field) }
func percent(field func(*Config) *float64) setting { return set(item.number, field) }

func duration(field func(*Config) *time.Duration) setting { return set(item.duration, field) }

// count returns a setting for a whole number in a range.
//
//go:noinline
func count[T int | uint64](low, high float64, field func(*Config) *T) setting {
	return setting{set: func(c *Config, i item) error {
		f, err := i.number()
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

// invertedBoolean returns a boolean setting whose default is true. Its field in the Config has the
// opposite meaning.
//
//go:noinline
func invertedBoolean(field func(*Config) *bool) setting {
	return setting{set: func(c *Config, i item) error {
		on, err := i.boolean()
		*field(c) = err == nil && !on
		return err
	}}
}

// weakSettingError means that the value of a setting is too weak, and that a stronger value is used
// instead. It is reported as a warning.
type weakSettingError struct{ text string }

func (e *weakSettingError) Error() string { return e.text }

func setMinVersion(c *Config, i item) error {
	name, err := i.text()
	if err != nil {
		return err
	}
	switch name {
	case "tls10", "tls11":
		c.TLS.MinVersion = tls.VersionTLS12
		return &weakSettingError{name + " is not safe, tls12 is the least"}
	case "tls12":
		c.TLS.MinVersion = tls.VersionTLS12
	case "tls13":
		c.TLS.MinVersion = tls.VersionTLS13
	default:
		return errors.New("must be tls12 or tls13")
	}
	return nil
}

// setCipherSuites accepts the names of secure TLS 1.2 suites. For TLS 1.3 the
// suites cannot be chosen.
func setCipherSuites(c *Config, i item) error {
	names, err := i.text()
	if err != nil {
		return err
	}
	c.TLS.CipherSuites = nil
	for _, name := range words(names) {
		at := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if at < 0 {
			return fmt.Errorf("%s is not known, or not safe", name)
		}
		c.TLS.CipherSuites = append(c.TLS.CipherSuites, tls.CipherSuites()[at].ID)
	}
	return nil
}

// maxHandshake is the upper limit for HandshakeTimeout, because clients are not
// authenticated during the TLS handshake.
const maxHandshake = time.Minute

func setHandshakeTimeout(c *Config, i item) error {
	d, err := i.duration()
	if err != nil {
		return err
	}
	c.HandshakeTimeout = d
	if d == 0 || d > maxHandshake {
		c.HandshakeTimeout = maxHandshake
		return &weakSettingError{fmt.Sprintf("%v is the most", maxHandshake)}
	}
	return nil
}

// stringMap returns a setting for a block in which users choose the names. Several such blocks are
// merged.
//
//go:noinline
func stringMap(field func(*Config) *map[string]string) setting {
	return setting{set: func(c *Config, i item) error {
		texts, err := i.texts()
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

const maxNumber = 1 << 53

// settings are the settings at the top level of a file, by name.
var settings = map[string]setting{
	"region":     text(func(c *Config) *string { return &c.Node.Region }),
	"datacenter": text(func(c *Config) *string { return &c.Node.Datacenter }),
	"name":       text(func(c *Config) *string { return &c.Node.Name }),
	"data_dir":   text(func(c *Config) *string { return &c.DataDir }),
	"plugin_dir": text(func(c *Config) *string { return &c.PluginDir }),
	"bind_addr":  text(func(c *Config) *string { return &c.BindAddr }),
	"log_level": {set: func(c *Config, i item) error {
		level, err := i.text()
		if err == nil && hclog.LevelFromString(level) == hclog.NoLevel {
			err = errors.New("must be trace, debug, info, warn or error")
		}
		c.LogLevel = level
		return err
	}},
	"log_json":             boolean(func(c *Config) *bool { return &c.LogJSON }),
	"log_include_location": boolean(func(c *Config) *bool { return &c.LogLocation }),
	"leave_on_interrupt":   boolean(func(c *Config) *bool { return &c.LeaveOnInterrupt }),
	"leave_on_terminate":   boolean(func(c *Config) *bool { return &c.LeaveOnTerminate }),

	"http_api_response_headers": stringMap(func(c *Config) *map[string]string { return &c.HTTPHeaders }),

	"ports": {block: map[string]setting{
		"http": count(0, 65535, func(c *Config) *int { c.HTTPPort = new(int); return c.HTTPPort }),
		"rpc":  {ignored: noServers},
		"serf": {ignored: noServers},
	}},
	"addresses": {block: map[string]setting{
		"http": text(func(c *Config) *string { return &c.HTTPAddr }),
		"rpc":  {ignored: noServers},
		"serf": {ignored: noServers},
	}},
	"advertise": {block: map[string]setting{
		"http": text(func(c *Config) *string { return &c.HTTPAdvertise }),
		"rpc":  {ignored: noServers},
		"serf": {ignored: noServers},
	}},
	"acl": {block: map[string]setting{
		"enabled": {set: func(c *Config, i item) error {
			on, err := i.boolean()
			c.NoTokens = err == nil && !on
			return err
		}},
		"token_ttl":                    {ignored: notNeeded},
		"policy_ttl":                   {ignored: notNeeded},
		"role_ttl":                     {ignored: notNeeded},
		"replication_token":            {ignored: noServers},
		"token_min_expiration_ttl":     {ignored: notNeeded},
		"token_max_expiration_ttl":     {ignored: notNeeded},
		"authentication_burst_limit":   {ignored: notNeeded},
		"authentication_rate_limit":    {ignored: notNeeded},
		"oidc_disable_pkce":            {ignored: notNeeded},
		"max_auth_token_requests":      {ignored: notNeeded},
		"max_auth_token_requests_time": {ignored: notNeeded},
	}},
	"tls": {
		block: map[string]setting{
			"http":                            boolean(func(c *Config) *bool { return &c.TLS.HTTP }),
			"ca_file":                         text(func(c *Config) *string { return &c.TLS.CAFile }),
			"cert_file":                       text(func(c *Config) *string { return &c.TLS.CertFile }),
			"key_file":                        text(func(c *Config) *string { return &c.TLS.KeyFile }),
			"verify_https_client":             boolean(func(c *Config) *bool { return &c.TLS.VerifyClient }),
			"tls_min_version":                 {set: setMinVersion},
			"tls_cipher_suites":               {set: setCipherSuites},
			"rpc":                             {ignored: noServers},
			"verify_server_hostname":          {ignored: noServers},
			"rpc_upgrade_mode":                {ignored: noServers},
			"tls_prefer_server_cipher_suites": {ignored: notNeeded},
		},
	},
	"limits": {block: map[string]setting{
		"http_max_conns_per_client": count(0, maxNumber, func(c *Config) *int { return &c.HTTPConns }),
		"https_handshake_timeout":   {set: setHandshakeTimeout},
		"rpc_handshake_timeout":     {ignored: noServers},
		"rpc_max_conns_per_client":  {ignored: noServers},
	}},
	"telemetry": {block: map[string]setting{
		"prometheus_metrics":         invertedBoolean(func(c *Config) *bool { return &c.Telemetry.OmitPrometheusFormat }),
		"publish_allocation_metrics": invertedBoolean(func(c *Config) *bool { return &c.Telemetry.OmitAllocationMetrics }),
		"publish_node_metrics":       invertedBoolean(func(c *Config) *bool { return &c.Telemetry.OmitNodeMetrics }),

		"circonus_api_app":                       {ignored: metricsPulled},
		"circonus_api_token":                     {ignored: metricsPulled},
		"circonus_api_url":                       {ignored: metricsPulled},
		"circonus_broker_id":                     {ignored: metricsPulled},
		"circonus_broker_select_tag":             {ignored: metricsPulled},
		"circonus_check_display_name":            {ignored: metricsPulled},
		"circonus_check_force_metric_activation": {ignored: metricsPulled},
		"circonus_check_id":                      {ignored: metricsPulled},
		"circonus_check_instance_id":             {ignored: metricsPulled},
		"circonus_check_search_tag":              {ignored: metricsPulled},
		"circonus_check_tags":                    {ignored: metricsPulled},
		"circonus_submission_interval":           {ignored: metricsPulled},
		"circonus_submission_url":                {ignored: metricsPulled},
		"collection_interval":                    {ignored: "metrics are collected when they are requested"},
		"datadog_address":                        {ignored: metricsPulled},
		"datadog_tags":                           {ignored: metricsPulled},
		"disable_allocation_hook_metrics":        {ignored: notNeeded},
		"disable_dispatched_job_summary_metrics": {ignored: notNeeded},
		"disable_hostname":                       {ignored: notNeeded},
		"disable_quota_utilization_metrics":      {ignored: enterpriseOnly},
		"disable_rpc_rate_metrics_labels":        {ignored: noServers},
		"filter_default":                         {ignored: notNeeded},
		"in_memory_collection_interval":          {ignored: "metrics are collected when they are requested"},
		"in_memory_retention_period":             {ignored: "metrics are collected when they are requested"},
		"include_alloc_metadata_in_metrics":      {ignored: notYet},
		"prefix_filter":                          {ignored: notNeeded},
		"allowed_metadata_keys_in_metrics":       {ignored: notYet},
		"statsd_address":                         {ignored: metricsPulled},
		"statsite_address":                       {ignored: metricsPulled},
		"use_node_name":                          {ignored: notNeeded},
	}},
	"unix_sockets": {block: map[string]setting{
		"group": text(func(c *Config) *string { return &c.SocketGroup }),
		"user":  {ignored: "the unix socket belongs to the user of the agent"},
		"mode":  {ignored: "the mode of the unix socket is 0660 with a group, and 0600 without one"},
	}},
	"enable_debug": boolean(func(c *Config) *bool { return &c.Debug }),

	"hook":   {set: setHook},
	"client": {block: client},
	"server": {block: server},

	"audit":                        {ignored: enterpriseOnly},
	"autopilot":                    {ignored: noServers},
	"consul":                       {ignored: noConsul},
	"disable_anonymous_signature":  {ignored: notNeeded},
	"disable_update_check":         {ignored: notNeeded},
	"enable_syslog":                {ignored: "the log is written to standard error; systemd passes it to the journal"},
	"keyring":                      {ignored: noServers},
	"license_path":                 {ignored: enterpriseOnly},
	"log_file":                     {ignored: "the log is written to standard error; systemd passes it to the journal"},
	"log_rotate_bytes":             {ignored: "the log is written to standard error; systemd passes it to the journal"},
	"log_rotate_duration":          {ignored: "the log is written to standard error; systemd passes it to the journal"},
	"log_rotate_max_files":         {ignored: "the log is written to standard error; systemd passes it to the journal"},
	"reporting":                    {ignored: enterpriseOnly},
	"rpc":                          {ignored: noServers},
	"sentinel":                     {ignored: enterpriseOnly},
	"syslog_facility":              {ignored: "the log is written to standard error; systemd passes it to the journal"},
	"ui":                           {ignored: notYet},
	"eventlog":                     {ignored: notNeeded},
	"vault":                        {ignored: noVault},
	"enable_template_token_lookup": {ignored: noVault},
}

// client are the settings of the client block. Each agent is a client, so all of them have an effect,
// except those about servers.
var client = map[string]setting{
	"enabled": {set: func(_ *Config, i item) error {
		on, err := i.boolean()
		if err == nil && !on {
			// false is rejected because an agent without a client would have no function.
			return errors.New("cannot be false here: running tasks is all that an agent does")
		}
		return err
	}},
	"node_class":        text(func(c *Config) *string { return &c.Node.Class }),
	"node_pool":         text(func(c *Config) *string { return &c.Node.Pool }),
	"meta":              stringMap(func(c *Config) *map[string]string { return &c.Node.Meta }),
	"network_interface": text(func(c *Config) *string { return &c.Node.NetworkInterface }),
	"cpu_total_compute": count(0, maxNumber, func(c *Config) *int { return &c.Node.CPU }),
	"memory_total_mb":   count(0, maxNumber, func(c *Config) *int { return &c.Node.MemoryMB }),
	"disk_total_mb":     count(0, maxNumber, func(c *Config) *int { return &c.Node.DiskMB }),
	"min_dynamic_port":  count(1, 65535, func(c *Config) *int { return &c.Node.MinDynamicPort }),
	"max_dynamic_port":  count(1, 65535, func(c *Config) *int { return &c.Node.MaxDynamicPort }),
	"client_min_port":   count(1, 65535, func(c *Config) *int { return &c.Node.ClientMinPort }),
	"client_max_port":   count(1, 65535, func(c *Config) *int { return &c.Node.ClientMaxPort }),
	"max_kill_timeout":  duration(func(c *Config) *time.Duration { return &c.MaxKillTimeout }),
	"gc_interval":       duration(func(c *Config) *time.Duration { return &c.GC.Interval }),
	"gc_max_allocs":     count(1, maxNumber, func(c *Config) *int { return &c.GC.MaxAllocs }),
	"gc_parallel_destroys": count(1, 1000, func(c *Config) *int {
		return &c.GC.Parallelism
	}),
	"gc_disk_usage_threshold":  percent(func(c *Config) *float64 { return &c.GC.DiskUsage }),
	"gc_inode_usage_threshold": percent(func(c *Config) *float64 { return &c.GC.InodeUsage }),
	"gc_disk_usage_min_age":    duration(func(c *Config) *time.Duration { return &c.GC.DiskUsageMinAge }),
	"reserved": {block: map[string]setting{
		"cpu":    count(0, maxNumber, func(c *Config) *uint64 { return &c.Node.Reserved.CPU }),
		"memory": count(0, maxNumber, func(c *Config) *uint64 { return &c.Node.Reserved.MemoryMB }),
		"disk":   count(0, maxNumber, func(c *Config) *uint64 { return &c.Node.Reserved.DiskMB }),
		"reserved_ports": {set: func(c *Config, i item) (err error) {
			if c.Node.Reserved.Ports, err = i.text(); err == nil {
				_, err = scheduler.ParsePorts(c.Node.Reserved.Ports)
			}
			return err
		}},
		"cores": {ignored: notYet},
	}},
	"options": {set: setOptions},
	"drain_on_shutdown": {
		initBlock: func(c *Config) { c.Drain = &Drain{} },
		block: map[string]setting{
			"deadline":           duration(func(c *Config) *time.Duration { return &c.Drain.Deadline }),
			"force":              boolean(func(c *Config) *bool { return &c.Drain.Force }),
			"ignore_system_jobs": {ignored: "all jobs are stopped with the agent"},
		},
	},

	"artifact": {block: artifact},
	"template": {block: template},

	"alloc_dir":                       {ignored: "allocations are in the data directory"},
	"alloc_mounts_dir":                {ignored: "allocations are in the data directory"},
	"bridge_network_hairpin_mode":     {ignored: notYet},
	"bridge_network_name":             {ignored: notYet},
	"bridge_network_subnet":           {ignored: notYet},
	"bridge_network_subnet_ipv6":      {ignored: notYet},
	"cgroup_parent":                   {ignored: notYet},
	"chroot_env":                      {ignored: notYet},
	"cni_config_dir":                  {ignored: notYet},
	"cni_path":                        {ignored: notYet},
	"cpu_disable_dmidecode":           {ignored: notNeeded},
	"disable_remote_exec":             {ignored: notYet},
	"fingerprint":                     {ignored: notNeeded},
	"gc_volumes_on_node_gc":           {ignored: noServers},
	"host_network":                    {ignored: notYet},
	"host_volume":                     {ignored: notYet},
	"host_volume_plugin_dir":          {ignored: notYet},
	"host_volumes_dir":                {ignored: notYet},
	"intro_token":                     {ignored: noServers},
	"log_rotate_max_files":            {ignored: notNeeded},
	"network_speed":                   {ignored: "bandwidth is not reserved, as in Nomad"},
	"no_host_uuid":                    {ignored: notNeeded},
	"node_max_allocs":                 {ignored: notYet},
	"nomad_service_discovery":         {ignored: "services of this machine are always registered here"},
	"preferred_address_family":        {ignored: notYet},
	"publish_node_metrics":            {ignored: notYet},
	"reserveable_cores":               {ignored: notYet},
	"reservable_cores":                {ignored: notYet},
	"retry_interval":                  {ignored: noServers},
	"retry_join":                      {ignored: noServers},
	"retry_max":                       {ignored: noServers},
	"server_join":                     {ignored: noServers},
	"servers":                         {ignored: noServers},
	"start_join":                      {ignored: noServers},
	"state_dir":                       {ignored: "the state is in the data directory"},
	"users":                           {ignored: notYet},
	"allow_unsafe_driver_reattach":    {ignored: notNeeded},
	"disable_allocation_hook_metrics": {ignored: notNeeded},
}

// server are the settings of the server block. Those about the scheduler apply to the agent's own
// scheduler.
var server = map[string]setting{
	"enabled":                 {set: func(_ *Config, i item) error { _, err := i.boolean(); return err }},
	"job_gc_interval":         duration(func(c *Config) *time.Duration { return &c.SchedulerGC.Interval }),
	"job_gc_threshold":        duration(func(c *Config) *time.Duration { return &c.SchedulerGC.Jobs }),
	"eval_gc_threshold":       duration(func(c *Config) *time.Duration { return &c.SchedulerGC.Evals }),
	"batch_eval_gc_threshold": duration(func(c *Config) *time.Duration { return &c.SchedulerGC.BatchEvals }),
	"deployment_gc_threshold": duration(func(c *Config) *time.Duration { return &c.SchedulerGC.Deployments }),
}

func init() {
	for _, name := range []string{
		"acl_token_gc_threshold", "authoritative_region", "bootstrap_expect", "client_introduction", "csi_plugin_gc_threshold",
		"csi_volume_claim_gc_interval", "csi_volume_claim_gc_threshold", "data_dir", "default_scheduler_config", "deployment_query_rate_limit",
		"enable_event_broker", "enabled_schedulers", "encrypt", "event_buffer_size", "failover_heartbeat_ttl", "heartbeat_grace",
		"job_default_priority", "job_max_count", "job_max_priority", "job_max_source_size", "job_tracked_versions", "license_path",
		"license_env", "max_client_disconnect", "max_heartbeats_per_second", "min_heartbeat_ttl", "node_gc_threshold",
		"node_threshold", "node_window", "non_voting_server", "num_schedulers", "oidc_issuer", "plan_rejection_tracker", "protocol_version",
		"raft_boltdb", "raft_logstore", "raft_multiplier", "raft_protocol", "raft_snapshot_interval", "raft_snapshot_threshold",
		"raft_trailing_logs", "redundancy_zone", "rejoin_after_leave", "retry_interval", "retry_join", "retry_max",
		"root_key_gc_interval", "root_key_gc_threshold", "root_key_rotation_threshold", "search", "server_join", "start_join",
		"start_timeout", "system_scheduler_enabled", "upgrade_version", "volumes_gc_threshold", "deregistration_gc_threshold",
	} {
		server[name] = setting{ignored: noServers}
	}
}

// setOptions reads the supported entries of the legacy options block.
func setOptions(c *Config, i item) error {
	options, err := i.texts()
	if err != nil {
		return err
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(options)) {
		value := options[name]
		switch name {
		case "driver.raw_exec.enable":
			c.RawExec = value == "1" || strings.EqualFold(value, "true")
		case "driver.allowlist", "driver.whitelist":
			c.DriverAllow = words(value)
		case "driver.denylist", "driver.blacklist":
			c.DriverDeny = words(value)
		case "env.denylist", "env.blacklist":
			c.EnvDenylist = append([]string{}, words(value)...) // not nil if the list is empty, because nil means the default
		case "env.allowlist":
			c.EnvAllowlist = append([]string{}, words(value)...)
		case "user.denylist", "user.blacklist":
			c.UserDenylist = words(value)
		case "user.checked_drivers":
			c.UserDrivers = words(value)
		case "alloc_dir.nomad_modes":
			c.NomadFileModes = value == "1" || strings.EqualFold(value, "true")
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return &unusedError{unknown}
	}
	return nil
}

// unusedError names options that have no effect. Each is reported as a warning.
type unusedError struct{ names []string }

func (e *unusedError) Error() string { return "no such option: " + strings.Join(e.names, ", ") }
