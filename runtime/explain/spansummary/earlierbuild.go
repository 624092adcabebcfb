package spansummary

import (
	"fmt"
	"strings"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// The functions in this file read run texts recorded by a build without tracespan.Span.RunEnd.

// runEndOfEarlierBuild returns the exit status in a run's result, such as `Exit Code: 137, Signal: 9, Exit Message: "x"`; nil if
// it has none.
func runEndOfEarlierBuild(run *tracespan.Span) *restart.RunEnd {
	var end restart.RunEnd
	if n, _ := fmt.Sscanf(run.Result, "Exit Code: %d, Signal: %d", &end.ExitCode, &end.Signal); n == 0 {
		return nil
	}
	if _, message, found := strings.Cut(run.Result, "Exit Message: "); found {
		end.Error = strings.Trim(message, `"`)
	}
	return &end
}

// isRestartByCheckOfEarlierBuild reports whether check_restart caused a restart request event.
func isRestartByCheckOfEarlierBuild(event *tracespan.Span) bool {
	return strings.HasPrefix(event.Result, "healthcheck: ")
}
