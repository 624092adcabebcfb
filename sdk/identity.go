package sdk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// basePlugin implements the calls that every plugin has: its description and its
// configuration. It satisfies base.Plugin.
type basePlugin struct {
	impl    Plugin
	info    Info
	kind    base.Type
	version string // version of the protocol for the plugin's kind

	configMu sync.Mutex
	config   *base.Config // last configuration that the author accepted
}

func newBasePlugin(impl Plugin, kind base.Type, version string) basePlugin {
	return basePlugin{impl: impl, info: infoOf(impl), kind: kind, version: version}
}

func infoOf(impl Plugin) Info {
	info := impl.Info()
	if info.Version == "" {
		info.Version = "0.1.0"
	}
	return info
}

func (i *Info) check() error {
	if i.Name == "" {
		return errors.New("Info has no Name")
	}
	for _, r := range i.Name {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.' {
			continue
		}
		return fmt.Errorf("name %q has the character %q; letters, digits, _, - and . are possible", i.Name, r)
	}
	for _, schema := range []struct {
		name string
		spec *Spec
	}{{"ConfigSchema", i.ConfigSchema}, {"TaskSchema", i.TaskSchema}, {"AttachmentSchema", i.AttachmentSchema}} {
		if err := schema.spec.Fault(); err != nil {
			return fmt.Errorf("%s in Info: %w", schema.name, err)
		}
	}
	return nil
}

func (i *basePlugin) PluginInfo(context.Context) (*base.Info, error) {
	return &base.Info{Type: i.kind, APIVersions: []string{i.version}, Version: i.info.Version, Name: i.info.Name}, nil
}

func (i *basePlugin) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	return i.info.ConfigSchema, nil
}

// SetConfig passes a configuration to the author once: hosts send it repeatedly.
func (i *basePlugin) SetConfig(ctx context.Context, config *base.Config) error {
	configurer, ok := i.impl.(Configurer)
	if !ok {
		return nil
	}
	i.configMu.Lock()
	defer i.configMu.Unlock()
	if i.config != nil && bytes.Equal(i.config.Plugin, config.Plugin) && reflect.DeepEqual(i.config.Driver, config.Driver) {
		return nil
	}
	c := &Config{body: config.Plugin}
	if config.Driver != nil {
		c.MinPort, c.MaxPort = config.Driver.ClientMinPort, config.Driver.ClientMaxPort
	}
	if err := authorConfigure(ctx, configurer, c); err != nil {
		return err
	}
	i.config = config
	return nil
}
