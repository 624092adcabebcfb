package model

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestSchedulerConfigChangeNamesRefusedSettings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.SchedulerConfiguration)
		want   string // error prefix; "" for no error
	}{
		"no change":        {func(*api.SchedulerConfiguration) {}, ""},
		"oversubscription": {func(c *api.SchedulerConfiguration) { c.MemoryOversubscriptionEnabled = true }, ""},
		"preemption": {func(c *api.SchedulerConfiguration) {
			c.PreemptionConfig = api.PreemptionConfig{BatchSchedulerEnabled: true}
		}, ""},
		"other indexes": {func(c *api.SchedulerConfiguration) { c.CreateIndex, c.ModifyIndex = 3, 4 }, ""},
		"algorithm":     {func(c *api.SchedulerConfiguration) { c.SchedulerAlgorithm = "spread" }, "SchedulerAlgorithm is binpack and cannot become spread: "},
		"rejected jobs": {func(c *api.SchedulerConfiguration) { c.RejectJobRegistration = true }, ""},
		"paused broker": {func(c *api.SchedulerConfiguration) { c.PauseEvalBroker = true }, ""},
		"node limit":    {func(c *api.SchedulerConfiguration) { c.NodeLimitForFeasibilityChecks = 7 }, "NodeLimitForFeasibilityChecks is 0 and cannot become 7: "},
		"two settings are named at once": {func(c *api.SchedulerConfiguration) {
			c.SchedulerAlgorithm, c.NodeLimitForFeasibilityChecks = "spread", 7
		}, "SchedulerAlgorithm is binpack and cannot become spread; NodeLimitForFeasibilityChecks is 0 and cannot become 7: "},
	} {
		t.Run(name, func(t *testing.T) {
			next := NewDefaultSchedulerConfig()
			c.change(next)
			err := ValidateSchedulerConfigChange(NewDefaultSchedulerConfig(), next)
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
