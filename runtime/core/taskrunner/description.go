package taskrunner

import (
	"context"
	"fmt"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// maxInterruptedFetches limits how often FetchDriverDescription repeats a fetch: a plugin that dies at each fetch has a defect.
const maxInterruptedFetches = 5

// FetchDriverDescription fetches the task config schema and the capabilities from the driver, unless an earlier call has
// succeeded. It must have returned before Run. If awaitDriver is true, it emits an event and blocks while the driver is
// unavailable, even if the plugin dies in the meantime. Otherwise it returns an error for which
// [taskdriver.IsTemporarilyUnavailable] is true; then Run fetches the description before the task starts.
func (r *Runner) FetchDriverDescription(ctx context.Context, awaitDriver bool) error {
	for fetches := 1; r.schema == nil; fetches++ {
		schema, capabilities, err := r.driver.FetchDescription(ctx)
		if err == nil {
			r.schema = schema
			r.records.commit(record.CapabilitiesSeen{Capabilities: capabilities})
			r.setCapabilitiesAndEnvDirs(capabilities)
			return nil
		}
		fetchErr := fmt.Errorf("driver %q: %w", r.driver.DriverName, err)
		if !awaitDriver || !taskdriver.IsTemporarilyUnavailable(err) {
			return fetchErr
		}
		if _, err := r.driver.AwaitDriver(ctx); err != nil {
			return fmt.Errorf("driver %q: %w", r.driver.DriverName, err)
		}
		if fetches == maxInterruptedFetches {
			return fetchErr
		}
	}
	return nil
}

// setCapabilitiesAndEnvDirs sets the driver's capabilities, which determine the directories in the task's environment.
func (r *Runner) setCapabilitiesAndEnvDirs(c *driver.Capabilities) {
	r.capabilities.Store(c)
	r.records.env.SetDirs(r.hooks.dir, c.FSIsolation)
}

// DriverCapabilities returns the driver's capabilities. The result is the zero value before FetchDriverDescription,
// unless an earlier agent has stored the capabilities.
func (r *Runner) DriverCapabilities() driver.Capabilities {
	if c := r.capabilities.Load(); c != nil {
		return *c
	}
	return driver.Capabilities{}
}
