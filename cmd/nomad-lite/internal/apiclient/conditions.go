package apiclient

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Condition is something that is wrong with the agent or its machine, which agents of nomad-lite report.
type Condition struct {
	Kind, Severity, Object string
	Summary, Remedy        string   // sentences without a full stop at their end
	Commands               []string // what to type
	Since                  time.Time
}

// ReadConditions returns the conditions of the agent, or nil if there are none or the agent does not report them, as agents of Nomad.
func ReadConditions(ctx context.Context, c *api.Client) []Condition {
	var report struct{ Conditions []Condition }
	if _, err := c.Raw().Query("/v1/agent/conditions", &report, QueryOptions(ctx, "")); err != nil {
		return nil
	}
	return report.Conditions
}
