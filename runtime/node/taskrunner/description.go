package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

// driverDescription holds the schema and the capabilities of the task's driver. Only
// driverCapabilities may be called concurrently with other methods.
type driverDescription struct {
	records  *taskRecords
	dispense dispenseDriverFunc
	task     func() Task
	dir      hook.TaskDir
	env      *taskenv.Builder // receives the directories of the task, which depend on the driver's filesystem isolation

	schema *hclspec.Spec // schema of the task config block; nil until fetched

	mu           sync.Mutex
	capabilities *driver.Capabilities // capabilities of the driver; nil until fetched
}

// fetchOnce requests the schema and the capabilities from the driver, unless an earlier call has succeeded.
func (d *driverDescription) fetchOnce(ctx context.Context) error {
	if d.schema != nil {
		return nil
	}
	schema, capabilities, err := d.querySchemaAndCapabilities(ctx)
	if errors.Is(err, driver.ErrPluginDown) && ctx.Err() == nil {
		schema, capabilities, err = d.querySchemaAndCapabilities(ctx) // the plugin exited during the call; another plugin process returns the same description
	}
	if err != nil {
		return fmt.Errorf("driver %q: %w", d.task().Driver, err)
	}
	d.schema = schema
	d.records.localState.Capabilities = capabilities // stored with the next put of the local state
	d.setCapabilities(capabilities)
	return nil
}

// maxInterruptedFetches limits how often fetchWhenAvailable repeats a fetch: a plugin that dies at each fetch has a defect.
const maxInterruptedFetches = 5

// fetchWhenAvailable is fetchOnce that blocks while the driver is unavailable, also if its plugin dies in the meantime.
// awaitDriver returns when the driver is available.
func (d *driverDescription) fetchWhenAvailable(ctx context.Context, awaitDriver dispenseDriverFunc) (err error) {
	for range maxInterruptedFetches {
		if err = d.fetchOnce(ctx); !IsDriverTemporarilyUnavailable(err) {
			return err
		}
		if _, err := awaitDriver(ctx); err != nil {
			return fmt.Errorf("driver %q: %w", d.task().Driver, err)
		}
	}
	return err
}

// querySchemaAndCapabilities returns the driver's task config schema and capabilities.
func (d *driverDescription) querySchemaAndCapabilities(ctx context.Context) (*hclspec.Spec, *driver.Capabilities, error) {
	impl, err := d.dispense(ctx)
	if err != nil {
		return nil, nil, err
	}
	schema, err := impl.TaskConfigSchema(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("task config schema: %w", err)
	}
	capabilities, err := impl.Capabilities(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("capabilities: %w", err)
	}
	return schema, capabilities, nil
}

// restoreCapabilities sets the capabilities that an earlier agent has stored; stored may be nil.
func (d *driverDescription) restoreCapabilities(stored *driver.Capabilities) {
	d.env.SetDirs(d.dir, driver.FSIsolationNone) // setCapabilities replaces the directories when the isolation of the driver is known
	if stored != nil {
		d.setCapabilities(stored)
	}
}

func (d *driverDescription) setCapabilities(c *driver.Capabilities) {
	d.mu.Lock()
	d.capabilities = c
	d.mu.Unlock()
	d.env.SetDirs(d.dir, c.FSIsolation)
}

// driverCapabilities returns the driver's capabilities, the zero value if they are not known.
func (d *driverDescription) driverCapabilities() driver.Capabilities {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.capabilities == nil {
		return driver.Capabilities{}
	}
	return *d.capabilities
}
