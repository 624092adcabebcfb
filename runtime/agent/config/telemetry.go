package config

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
)

// Reasons why settings of the telemetry block are ignored.
const (
	circonusReason = "metrics are sent to statsd, statsite and Datadog, and served at /v1/metrics"
	inMemoryReason = "metrics are collected when they are requested"
)

// telemetrySettings are the settings of the telemetry block.
var telemetrySettings = map[string]settingSpec{
	// The API serves the format of Prometheus. [default: true, in Nomad false; reload]
	"prometheus_metrics": invertedBooleanSetting(func(c *Config) *bool { return &c.Telemetry.OmitPrometheusFormat }),
	// There are metrics of tasks. [default: true, in Nomad false; reload]
	"publish_allocation_metrics": invertedBooleanSetting(func(c *Config) *bool { return &c.Telemetry.OmitAllocationMetrics }),
	// There are metrics of the machine. [default: true, in Nomad false; reload]
	"publish_node_metrics": invertedBooleanSetting(func(c *Config) *bool { return &c.Telemetry.OmitNodeMetrics }),
	// There are no metrics nomad.nomad.job_summary of dispatched jobs. [reload]
	"disable_dispatched_job_summary_metrics": booleanSetting(func(c *Config) *bool { return &c.Telemetry.OmitDispatchedJobSummary }),
	// Metrics have no label host. [reload]
	"disable_hostname": booleanSetting(func(c *Config) *bool { return &c.Telemetry.OmitHost }),
	// Metrics that no element of prefix_filter names are kept. [default: true; reload]
	"filter_default": invertedBooleanSetting(func(c *Config) *bool { return &c.Telemetry.Filter.OmitDefault }),
	// Prefixes of names of metrics after + or -; the longest prefix decides. [type: list of strings; reload]
	"prefix_filter": {setInConfig: setMetricsPrefixFilter},
	// Minimum time between two samples of resource usage, and interval of the sinks; at least 1s. [default: 1s; reload]
	"collection_interval": parsedSetting(newCheckedParser(configItem.parseDuration, checkCollectionInterval), func(c *Config) *time.Duration { return &c.Telemetry.CollectionInterval }),
	// Metrics of tasks have the metadata of their job as labels. [reload]
	"include_alloc_metadata_in_metrics": booleanSetting(func(c *Config) *bool { return &c.Telemetry.IncludeAllocMetadata }),
	// Keys of metadata that become labels. [default: all; reload]
	"allowed_metadata_keys_in_metrics": parsedSetting(configItem.parseStringList, func(c *Config) *[]string { return &c.Telemetry.AllowedMetadataKeys }),
	// Address of a statsd server, host:port. [reload]
	"statsd_address": metricsSinkAddressSetting(metrics.Statsd),
	// Address of a statsite server. [reload]
	"statsite_address": metricsSinkAddressSetting(metrics.Statsite),
	// Address of a Datadog agent. [reload]
	"datadog_address": metricsSinkAddressSetting(metrics.Datadog),
	// Tags of the metrics for Datadog. [type: list of strings; reload]
	"datadog_tags": {setInConfig: setDatadogTags},
	// Traces and metrics for an OpenTelemetry collector. [not in Nomad]
	"otlp": {blockSettings: otlpSettings},

	"circonus_api_app":                       {ignoredReason: circonusReason},
	"circonus_api_token":                     {ignoredReason: circonusReason},
	"circonus_api_url":                       {ignoredReason: circonusReason},
	"circonus_broker_id":                     {ignoredReason: circonusReason},
	"circonus_broker_select_tag":             {ignoredReason: circonusReason},
	"circonus_check_display_name":            {ignoredReason: circonusReason},
	"circonus_check_force_metric_activation": {ignoredReason: circonusReason},
	"circonus_check_id":                      {ignoredReason: circonusReason},
	"circonus_check_instance_id":             {ignoredReason: circonusReason},
	"circonus_check_search_tag":              {ignoredReason: circonusReason},
	"circonus_check_tags":                    {ignoredReason: circonusReason},
	"circonus_submission_interval":           {ignoredReason: circonusReason},
	"circonus_submission_url":                {ignoredReason: circonusReason},
	"disable_allocation_hook_metrics":        {ignoredReason: noHookMetricsReason},
	"disable_quota_utilization_metrics":      {ignoredReason: enterpriseOnlyReason},
	"disable_rpc_rate_metrics_labels":        {ignoredReason: noServersReason},
	"in_memory_collection_interval":          {ignoredReason: inMemoryReason},
	"in_memory_retention_period":             {ignoredReason: inMemoryReason},
	"use_node_name":                          {ignoredReason: "the label host is always the name of the node"},
}

// minCollectionInterval is the minimum of the collection interval, because drivers need some time to sample their tasks.
const minCollectionInterval = time.Second

func checkCollectionInterval(d time.Duration) error {
	if d < minCollectionInterval {
		return fmt.Errorf("must be at least %q", minCollectionInterval)
	}
	return nil
}

func setMetricsPrefixFilter(c *Config, i configItem) error {
	rules, err := i.parseStringList()
	if err != nil {
		return err
	}
	var unused []string
	for _, rule := range rules {
		var unusedErr *metrics.UnusedRuleError
		err := metrics.CheckFilterRule(rule)
		switch {
		case errors.As(err, &unusedErr):
			unused = append(unused, strconv.Quote(rule))
		case err != nil:
			return err
		}
	}
	c.Telemetry.Filter.Rules = rules
	if len(unused) > 0 {
		return &settingWarning{"no metric has the prefix of " + strings.Join(unused, ", ")}
	}
	return nil
}

// metricsSinkAddressSetting returns a setting for the address of the service to which metrics are sent with a protocol.
// An empty address disables the sending.
//
//go:noinline
func metricsSinkAddressSetting(p metrics.Protocol) settingSpec {
	return settingSpec{valueType: reflect.TypeFor[string](), setInConfig: func(c *Config, i configItem) error {
		address, err := i.parseScalarAsString()
		if err != nil {
			return err
		}
		sink := c.findOrAddTelemetrySink(p)
		if address == "" {
			sink.Address = ""
			return nil
		}
		host, port, err := net.SplitHostPort(address)
		number, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || portErr != nil || number == 0 {
			return fmt.Errorf("%q is not host:port, such as 127.0.0.1:8125", address)
		}
		sink.Address = address
		return nil
	}}
}

func setDatadogTags(c *Config, i configItem) error {
	tags, err := i.parseStringList()
	if err != nil {
		return err
	}
	if n := slices.IndexFunc(tags, func(tag string) bool { return tag == "" || strings.ContainsAny(tag, "|,# \t\r\n") }); n >= 0 {
		return fmt.Errorf("%q is not a tag such as \"env:production\"", tags[n])
	}
	c.findOrAddTelemetrySink(metrics.Datadog).Tags = tags
	return nil
}

// findOrAddTelemetrySink returns the settings of the sink for a protocol. It adds a sink if there is none.
func (c *Config) findOrAddTelemetrySink(p metrics.Protocol) *metrics.Sink {
	n := slices.IndexFunc(c.Telemetry.Sinks, func(s metrics.Sink) bool { return s.Protocol == p })
	if n < 0 {
		n = len(c.Telemetry.Sinks)
		c.Telemetry.Sinks = append(c.Telemetry.Sinks, metrics.Sink{Protocol: p})
	}
	return &c.Telemetry.Sinks[n]
}
