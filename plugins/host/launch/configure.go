package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/device/devicewire"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/driver/driverwire"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/hook/hookwire"
)

// supportedAPIVersions are the API versions that the host supports, by plugin type, highest first.
var supportedAPIVersions = map[base.Type][]string{
	base.TypeDriver: {"v0.1.0"},
	base.TypeDevice: {device.APIVersion},
	base.TypeHook:   {hook.APIVersion},
}

// fetchInfoAndChooseAPIVersion fetches the plugin's type, name and version, and chooses the API version.
func (p *Plugin) fetchInfoAndChooseAPIVersion(ctx context.Context) error {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()
	info, err := basewire.NewClient(p.conn, p.proc.done).PluginInfo(ctx)
	if err != nil {
		return p.explainCallError(ctx, "PluginInfo", err)
	}
	p.info = *info
	p.apiVersion, err = validateInfoAndChooseAPIVersion(p.info)
	return err
}

// validateInfoAndChooseAPIVersion returns the API version to use, or an error if the host must refuse the plugin.
func validateInfoAndChooseAPIVersion(info base.Info) (apiVersion string, err error) {
	offered, ok := supportedAPIVersions[info.Type]
	if !ok {
		return "", fmt.Errorf("plugin is of unknown type: %q", info.Type)
	}
	if !base.ValidName(info.Name) {
		return "", fmt.Errorf("it reports itself as %s, which is not a plugin name", quoteTruncated(info.Name))
	}
	if _, err := version.NewVersion(info.Version); err != nil {
		return "", fmt.Errorf("failed to parse plugin version %s: malformed version", quoteTruncated(info.Version))
	}
	return chooseAPIVersion(offered, info.APIVersions)
}

// chooseAPIVersion returns the highest common version, in the plugin's spelling.
func chooseAPIVersion(hostVersions, pluginVersions []string) (string, error) {
	if len(pluginVersions) == 0 {
		return "", errors.New("plugin provided no compatible API versions: it names none")
	}
	var parsed []*version.Version
	for _, text := range pluginVersions {
		v, err := version.NewVersion(text)
		if err != nil {
			return "", fmt.Errorf("plugin provided invalid API versions: malformed version: %s", quoteTruncated(text))
		}
		parsed = append(parsed, v)
	}
	slices.SortStableFunc(parsed, func(a, b *version.Version) int { return b.Compare(a) })
	for _, text := range hostVersions {
		ours := version.Must(version.NewVersion(text))
		for _, t := range parsed {
			if ours.Equal(t) {
				return t.Original(), nil
			}
		}
	}
	return "", fmt.Errorf("plugin provided no compatible API versions: it speaks %s, this host %s", quoteTruncated(strings.Join(pluginVersions, ", ")), strings.Join(hostVersions, ", "))
}

// sendConfig fetches the schema of the plugin's config block, decodes the block by the schema, and sends the result to
// the plugin.
func (p *Plugin) sendConfig(ctx context.Context) error {
	schema, err := p.ConfigSchema(ctx)
	if err != nil {
		return err
	}
	settings, err := EncodeConfigBlock(schema, p.cfg.ConfigBlock)
	if err != nil {
		return newConfigBlockError(p, schema, err)
	}

	config := &base.Config{MsgpackConfig: settings, APIVersion: p.apiVersion}
	if p.info.Type == base.TypeDriver {
		config.Driver = p.cfg.DriverConfig
	}
	call, cancel := p.withCallTimeout(ctx)
	defer cancel()
	err = basewire.NewClient(p.conn, p.proc.done).SetConfig(call, config)
	switch {
	case err == nil:
		return nil
	case call.Err() == nil && isErrorOfPlugin(err):
		reason := strings.TrimPrefix(basewire.ErrorMessageWithoutGRPCPrefix(err), "SetConfig failed: ")
		return newConfigBlockError(p, schema, fmt.Errorf("the plugin rejects its configuration: %s", reason))
	}
	return p.explainCallError(call, "SetConfig", err)
}

// isErrorOfPlugin reports whether the plugin has returned the error of a call. Otherwise the call was not executed, or
// its result is unknown.
func isErrorOfPlugin(err error) bool {
	if errors.Is(err, driver.ErrPluginDown) {
		return false
	}
	// The plugin has the same deadline, and can notice it before this process.
	if strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unimplemented:
		return false
	}
	return true
}

// newConfigBlockError returns the ConfigBlockError for err, with the position of the plugin block.
func newConfigBlockError(p *Plugin, schema *hclspec.Spec, err error) error {
	if p.cfg.ConfigBlockPosition != "" {
		err = fmt.Errorf("%s: %w", p.cfg.ConfigBlockPosition, err)
	}
	return &ConfigBlockError{Info: p.info, Schema: schema, err: err}
}

// ConfigBlockError means that the config block of a plugin does not fit the plugin's schema, or that the plugin rejects
// it. It contains what the plugin has reported about itself before.
type ConfigBlockError struct {
	Info   base.Info
	Schema *hclspec.Spec
	err    error
}

func (e *ConfigBlockError) Error() string { return e.err.Error() }
func (e *ConfigBlockError) Unwrap() error { return e.err }

// EncodeConfigBlock decodes the config block by the schema and encodes it for SetConfig. Equal
// arguments have equal results. It returns an error if the block does not fit the schema.
func EncodeConfigBlock(schema *hclspec.Spec, configBlock map[string]any) ([]byte, error) {
	if schema == nil {
		if configBlock != nil {
			return nil, errors.New("configuration not allowed but config passed: the plugin takes none, remove the config block")
		}
		return nil, nil
	}
	value, diags := block.Decode(schema, configBlock, nil)
	if diags.HasErrors() {
		return nil, fmt.Errorf("failed to parse config: %s", strings.Join(block.Messages(diags), "; "))
	}
	b, err := block.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	return b, nil
}

// initServiceClient creates the client for the type of the plugin, and initialises the driver or hook.
func (p *Plugin) initServiceClient(ctx context.Context) error {
	switch p.info.Type {
	case base.TypeDriver:
		return p.createDriverClientAndInit(ctx)
	case base.TypeDevice:
		p.serviceClients.device = devicewire.NewClient(p.info.Name, p.conn, p.proc.done)
	case base.TypeHook:
		return p.describeAndConfigureHook(ctx)
	}
	return nil
}

// createDriverClientAndInit creates the client of the driver and calls the driver's Init. The client ignores that a
// driver has no Init.
func (p *Plugin) createDriverClientAndInit(ctx context.Context) error {
	p.serviceClients.driver = driverwire.NewClient(p.conn, p.proc.done)
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()
	if err := p.serviceClients.driver.Init(ctx); err != nil {
		return p.explainCallError(ctx, "Init", err)
	}
	return nil
}

// describeAndConfigureHook fetches the hook's description, and sends the hook the address of its host.
func (p *Plugin) describeAndConfigureHook(ctx context.Context) error {
	p.serviceClients.hook = hookwire.NewClient(p.conn, p.proc.done)
	call, cancel := p.withCallTimeout(ctx)
	defer cancel()
	description, err := p.serviceClients.hook.Describe(call)
	if err != nil {
		return p.explainCallError(call, "Describe", err)
	}
	if len(description.Subscriptions) == 0 {
		return errors.New("the hook subscribes to no hook point that this host knows")
	}
	call, cancel = p.withCallTimeout(ctx)
	defer cancel()
	if err := p.serviceClients.hook.Configure(call, p.cfg.HookConfig); err != nil {
		return p.explainCallError(call, "Configure", err)
	}
	p.serviceClients.hookDescription = description
	return nil
}
