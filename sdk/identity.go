package sdk

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// basePlugin implements base.Plugin, the calls that every kind of plugin has: its description and
// its configuration.
type basePlugin struct {
	authorPlugin any // the author's value
	pluginIdentity
	pluginType base.Type
	apiVersion string // version of the protocol for the plugin's kind

	configMu           sync.Mutex
	lastAcceptedConfig *base.Config // last configuration that the author accepted
}

// pluginIdentity holds the fields that DriverInfo, HookInfo and DeviceInfo have in common.
type pluginIdentity struct {
	name         string
	version      string
	configSchema *hclspec.Spec
}

// newPluginIdentity returns an error for an invalid name, for an invalid configSchema, and for a
// configSchema if impl has no Configure method.
func newPluginIdentity(impl any, name, version string, configSchema *hclspec.Spec) (pluginIdentity, error) {
	if name == "" {
		return pluginIdentity{}, fmt.Errorf("%T.Info has no Name", impl)
	}
	for _, r := range name {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.' {
			continue
		}
		return pluginIdentity{}, fmt.Errorf("name %q has the character %q; letters, digits, _, - and . are possible", name, r)
	}
	if version == "" {
		version = "0.1.0"
	}
	if err := validateInfoSchema("ConfigSchema", configSchema); err != nil {
		return pluginIdentity{}, err
	}
	if _, ok := impl.(Configurer); !ok && configSchema != nil {
		return pluginIdentity{}, fmt.Errorf("%T.Info has a ConfigSchema, and nothing takes the configuration: add Configure(context.Context, *sdk.Config) error", impl)
	}
	return pluginIdentity{name, version, configSchema}, nil
}

// validateInfoSchema returns an error for an invalid schema. field is the field of Info that has the schema, for the error.
func validateInfoSchema(field string, schema *hclspec.Spec) error {
	if err := schema.Fault(); err != nil {
		return fmt.Errorf("%s in Info: %w", field, err)
	}
	return nil
}

func (b *basePlugin) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: b.pluginType, APIVersions: []string{b.apiVersion}, Version: b.version, Name: b.name}, nil
}

func (b *basePlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	return b.configSchema, nil
}

// SetConfig calls the author's Configure only if the configuration differs from the last one that
// Configure accepted, because hosts send the same configuration repeatedly.
func (b *basePlugin) SetConfig(ctx context.Context, config *base.Config) error {
	configurer, ok := b.authorPlugin.(Configurer)
	if !ok {
		return nil
	}
	b.configMu.Lock()
	defer b.configMu.Unlock()
	if b.lastAcceptedConfig != nil && bytes.Equal(b.lastAcceptedConfig.MsgpackConfig, config.MsgpackConfig) && reflect.DeepEqual(b.lastAcceptedConfig.Driver, config.Driver) {
		return nil
	}
	c := &Config{encodedBody: config.MsgpackConfig}
	if config.Driver != nil {
		c.MinPort, c.MaxPort, c.Topology = config.Driver.ClientMinPort, config.Driver.ClientMaxPort, config.Driver.Topology
	}
	if err := callConfigureRecoverPanic(ctx, configurer, c); err != nil {
		return err
	}
	b.lastAcceptedConfig = config
	return nil
}
