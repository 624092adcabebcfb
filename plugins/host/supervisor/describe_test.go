package supervisor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// describedDriver has capabilities and a task schema.
type describedDriver struct{ *fakeDriver }

func (describedDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{Exec: true}, nil
}

func (describedDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(map[string]*hclspec.Spec{"task": hclspec.Attr("task", "string", false)}), nil
}

func TestDescribeReturnsReportOfPlugin(t *testing.T) {
	config := hclspec.Object(map[string]*hclspec.Spec{"config": hclspec.Attr("config", "string", false)})
	subscribed := &hook.Description{Subscriptions: []hook.Subscription{{Point: hook.Prestart}}}
	s := startSupervisor(t, Config{}, []catalog.Entry{{Name: "d"}, {Name: "h"}}, func(_ context.Context, name string, _ int) (*fakePlugin, error) {
		f := newFakePlugin(name, "1.2.3")
		f.configSchema = config
		if name == "h" {
			f.info.Type, f.description = base.TypeHook, subscribed
		} else {
			f.wrapperDriver = describedDriver{f.drv}
		}
		return f, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	got, err := s.Describe(ctx, driverKey("d"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Info.Name != "d" || got.Info.Version != "1.2.3" || got.ConfigSchema != config || !got.Capabilities.Exec || got.TaskSchema.Text() != "task = string\n" || got.Hook != nil {
		t.Errorf("driver: got %+v", got)
	}

	got, err = s.Describe(ctx, PluginKey{base.TypeHook, "h"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Info.Name != "h" || got.ConfigSchema != config || got.Capabilities != nil || got.TaskSchema != nil || got.Hook != subscribed {
		t.Errorf("hook: got %+v", got)
	}

	if _, err := s.Describe(ctx, driverKey("other")); !errors.Is(err, ErrNoDriver) {
		t.Errorf("missing driver: got %v", err)
	}
}
