package model

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// NewDefaultSchedulerConfig returns the scheduler configuration for a node without a stored one. The values are Nomad's defaults.
func NewDefaultSchedulerConfig() *api.SchedulerConfiguration {
	return &api.SchedulerConfiguration{
		SchedulerAlgorithm: api.SchedulerAlgorithmBinpack,
		PreemptionConfig:   api.PreemptionConfig{SystemSchedulerEnabled: true},
	}
}

// NewOversubscribingSchedulerConfig returns the default configuration with memory oversubscription: tasks can use their memory_max.
func NewOversubscribingSchedulerConfig() *api.SchedulerConfiguration {
	c := NewDefaultSchedulerConfig()
	c.MemoryOversubscriptionEnabled = true
	return c
}

// ValidateSchedulerConfigChange returns an error naming the settings that next changes although they have no effect on a single
// node. The indexes are not compared.
func ValidateSchedulerConfigChange(present, next *api.SchedulerConfiguration) error {
	var refused []string
	for _, s := range []struct {
		name        string
		before, now any
	}{
		{"SchedulerAlgorithm", present.SchedulerAlgorithm, next.SchedulerAlgorithm},
		{"NodeLimitForFeasibilityChecks", present.NodeLimitForFeasibilityChecks, next.NodeLimitForFeasibilityChecks},
	} {
		if s.before != s.now {
			refused = append(refused, fmt.Sprintf("%s is %v and cannot become %v", s.name, s.before, s.now))
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return fmt.Errorf("%s: a single node has one way to place allocations; leave this setting as it is", strings.Join(refused, "; "))
}
