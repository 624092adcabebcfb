package programs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveBusDevice serves a device plugin made with the SDK that needs a configuration: each file in its directory is a device of the
// group acme/node/MODEL, where MODEL is the content of the file.
func serveBusDevice() { sdk.ServeDevice(&busDevice{}) }

type busDevice struct {
	mu     sync.Mutex
	config busDeviceConfig
}

type busDeviceConfig struct {
	Dir    string                 `codec:"dir"`
	Models map[string]modelConfig `codec:"models"`
}

type modelConfig struct {
	Attributes map[string]string `codec:"attributes"`
}

func (*busDevice) Info() sdk.DeviceInfo {
	return sdk.DeviceInfo{Name: "bus", ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{
		"dir": hclspec.Attr("dir", "string", true),
		"models": hclspec.BlockMap("model", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{
			"attributes": hclspec.BlockAttrs("attributes", "string", false),
		})),
	})}
}

func (b *busDevice) Configure(_ context.Context, block *sdk.Config) error {
	var c busDeviceConfig
	if err := block.Decode(&c); err != nil {
		return err
	}
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("dir: %q is not an absolute path", c.Dir)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.config = c
	return nil
}

func (b *busDevice) Fingerprint(context.Context) ([]device.Group, error) {
	b.mu.Lock()
	c := b.config
	b.mu.Unlock()
	files, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, err
	}
	var groups []device.Group
	for _, file := range files {
		model, err := os.ReadFile(filepath.Join(c.Dir, file.Name()))
		if err != nil {
			return nil, err
		}
		g := device.Group{ID: device.GroupID{Vendor: "acme", Type: "node", Name: strings.TrimSpace(string(model))}, Attributes: map[string]device.Attribute{}}
		for name, text := range c.Models[g.ID.Name].Attributes {
			if g.Attributes[name], err = device.ParseAttribute(text); err != nil {
				return nil, err
			}
		}
		g.Devices = []device.Device{{ID: file.Name(), Healthy: true}}
		groups = append(groups, g)
	}
	return groups, nil
}

func (b *busDevice) Reserve(_ context.Context, req *sdk.ReserveRequest) (*device.Reservation, error) {
	return &device.Reservation{Env: map[string]string{"BUS_NODE": req.Devices[0].ID}}, nil
}
