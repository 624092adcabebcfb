package metrics

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Settings select metrics and their labels, as the telemetry block does. The zero value selects all metrics.
type Settings struct {
	OmitPrometheusFormat     bool // the Prometheus format is not served
	OmitNodeMetrics          bool // no metrics of the machine
	OmitAllocationMetrics    bool // no metrics of single allocations
	OmitDispatchedJobSummary bool // no job summaries of dispatched jobs
	OmitHost                 bool // no label host
	Filter                   Filter
	CollectionInterval       time.Duration // time between two samples of resource usage; 0 means DefaultInterval
	IncludeAllocMetadata     bool          // metrics of allocations have the metadata of the job as labels
	AllowedMetadataKeys      []string      // the keys of metadata that become labels; empty means all
	Sinks                    []Sink
}

// Sink is a service to which metrics are sent.
type Sink struct {
	Protocol Protocol
	Address  string   // host:port; empty means that there is no such service
	Tags     []string // tags of all metrics, for Datadog
}

// Protocol is the protocol by which metrics are sent to a sink.
type Protocol int

const (
	Statsd   Protocol = iota // lines in UDP packets
	Statsite                 // the same lines over TCP
	Datadog                  // lines with tags in UDP packets
)

func (p Protocol) String() string { return [...]string{"statsd", "statsite", "datadog"}[p] }

// Network returns the name of the network for package net.
func (p Protocol) Network() string {
	if p == Statsite {
		return "tcp"
	}
	return "udp"
}

// DefaultInterval is the collection interval of Nomad.
const DefaultInterval = time.Second

// Interval returns CollectionInterval, or DefaultInterval if it is 0.
func (s *Settings) Interval() time.Duration {
	if s.CollectionInterval == 0 {
		return DefaultInterval
	}
	return s.CollectionInterval
}

// selects reports whether a metric is collected.
func (s *Settings) selects(d *Definition) bool {
	switch {
	case d.group == nodeGroup && s.OmitNodeMetrics, d.group == allocationGroup && s.OmitAllocationMetrics:
		return false
	}
	return s.Filter.allows(d.Name)
}

// Filter selects metrics by prefixes of their names. The longest prefix decides. The zero value allows all
// names.
type Filter struct {
	Rules       []string // each rule is a sign and a prefix: + selects the metrics with the prefix, - omits them
	OmitDefault bool     // names without a rule are omitted
}

// CheckFilterRule returns an error for an invalid rule of a [Filter].
func CheckFilterRule(rule string) error {
	if len(rule) < 2 || rule[0] != '+' && rule[0] != '-' {
		return fmt.Errorf("%q has no sign: write +prefix to keep metrics and -prefix to omit them", rule)
	}
	if !slices.ContainsFunc(Definitions, func(d *Definition) bool { return strings.HasPrefix(d.Name, rule[1:]) }) {
		return &UnusedRuleError{rule}
	}
	return nil
}

// UnusedRuleError means that the rule of a Filter is valid, but that no metric has its prefix.
type UnusedRuleError struct{ rule string }

func (e *UnusedRuleError) Error() string {
	return fmt.Sprintf("no metric has the prefix of %q", e.rule)
}

func (f *Filter) allows(name string) bool {
	allowed, length := !f.OmitDefault, 0
	for _, rule := range f.Rules {
		if prefix := rule[1:]; len(prefix) > length && strings.HasPrefix(name, prefix) {
			allowed, length = rule[0] == '+', len(prefix)
		}
	}
	return allowed
}
