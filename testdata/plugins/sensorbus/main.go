// Command sensorbus is a device plugin for Nomad and nomad-lite. It offers the thermometers and
// relays of a sensor bus, which are directories below the directory of its configuration.
package main

import (
	"context"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// pollInterval bounds the time after which a change on the bus is reported. The bus is a handful
// of small files, so that polling is cheap, and works on any file system.
const pollInterval = 250 * time.Millisecond

func main() { sdk.ServeDevice(newPlugin()) }

// plugin is the device plugin.
type plugin struct {
	mu       sync.Mutex
	settings settings
	reads    map[string]readLog // key: directory of a node
	warned   map[string]string  // key: directory of a node that is not offered; value: the reason
}

// readLog counts the reads of the value of a node.
type readLog struct {
	count int64
	last  time.Time
}

var (
	_ sdk.Device              = (*plugin)(nil)
	_ sdk.Configurer          = (*plugin)(nil)
	_ sdk.DeviceStatsProvider = (*plugin)(nil)
)

func newPlugin() *plugin {
	return &plugin{reads: map[string]readLog{}, warned: map[string]string{}}
}

func (*plugin) Info() sdk.DeviceInfo {
	return sdk.DeviceInfo{
		Name:                "sensorbus",
		Version:             "0.1.0",
		FingerprintInterval: pollInterval,
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{
			"dir":          hclspec.Attr("dir", "string", true),
			"vendor":       hclspec.Default(hclspec.Attr("vendor", "string", false), hclspec.Literal(`"sensorbus"`)),
			"thermo_tasks": hclspec.Default(hclspec.Attr("thermo_tasks", "number", false), hclspec.Literal("1")),
			"models": hclspec.BlockMap("model", []string{"name"}, hclspec.Object(map[string]*hclspec.Spec{
				"attributes": hclspec.BlockAttrs("attributes", "string", false),
			})),
		}),
	}
}

// Configure accepts the plugin block of the host.
func (p *plugin) Configure(_ context.Context, block *sdk.Config) error {
	var c config
	if err := block.Decode(&c); err != nil {
		return err
	}
	return p.configure(c)
}

func (p *plugin) configure(c config) error {
	s, err := c.validate()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings = s
	return nil
}

// Fingerprint returns a group for each kind and model of the nodes on the bus.
func (p *plugin) Fingerprint(context.Context) ([]device.Group, error) {
	s := p.currentSettings()
	nodes, skipped, err := scan(s.dir)
	if err != nil {
		return nil, err
	}
	p.warn(skipped)
	groups := map[device.GroupID]*device.Group{}
	for _, n := range nodes {
		id := s.groupID(n)
		if groups[id] == nil {
			groups[id] = &device.Group{ID: id, Attributes: s.attributes(n)}
		}
		for _, deviceID := range s.deviceIDs(n) {
			groups[id].Devices = append(groups[id].Devices, device.Device{
				ID: deviceID, Healthy: n.problem == "", HealthDescription: n.problem,
			})
		}
	}
	var result []device.Group
	for _, g := range groups {
		result = append(result, *g)
	}
	sort.Slice(result, func(i, j int) bool { return result[i].ID.String() < result[j].ID.String() })
	return result, nil
}

// Reserve returns the directories of the devices, at the same path as on the host, so that the
// variables are right for drivers with and without mounts. Only relays can be written.
func (p *plugin) Reserve(_ context.Context, req *sdk.ReserveRequest) (*device.Reservation, error) {
	dir := p.currentSettings().dir
	r := &device.Reservation{Env: map[string]string{}}
	var paths []string
	kind := req.Group.ID.Type
	mounted := map[string]bool{}
	for _, d := range req.Devices {
		path, name := nodeOfDeviceID(dir, d.ID)
		if mounted[path] { // two shares of one thermometer
			continue
		}
		mounted[path] = true
		paths = append(paths, path)
		r.Mounts = append(r.Mounts, device.Mount{HostPath: path, TaskPath: path, ReadOnly: kind != relay})
		r.Env[envName("SENSORBUS", kind, name)] = path
	}
	r.Env[envName("SENSORBUS", kind, "PATHS")] = strings.Join(paths, ",")
	return r, nil
}

// Stats reads the value of each node.
func (p *plugin) Stats(context.Context) ([]device.GroupStats, error) {
	s := p.currentSettings()
	nodes, _, err := scan(s.dir)
	if err != nil {
		return nil, err
	}
	groups := map[device.GroupID]map[string]device.DeviceStats{}
	for _, n := range nodes {
		stats := p.read(n)
		id := s.groupID(n)
		if groups[id] == nil {
			groups[id] = map[string]device.DeviceStats{}
		}
		for _, deviceID := range s.deviceIDs(n) {
			groups[id][deviceID] = stats
		}
	}
	var result []device.GroupStats
	for id, instances := range groups {
		result = append(result, device.GroupStats{ID: id, Instances: instances})
	}
	return result, nil
}

// read reads the value of a node, and returns it with the history of its reads in this process.
func (p *plugin) read(n node) device.DeviceStats {
	now := time.Now()
	value, err := n.readValue()
	p.mu.Lock()
	log := p.reads[n.dir]
	if err == nil {
		log.count, log.last = log.count+1, now
		p.reads[n.dir] = log
	}
	p.mu.Unlock()

	kind := kinds[n.kind]
	summary := device.StatValue{Unit: kind.valueUnit, Description: kind.valueDescription}
	if err == nil {
		summary.Value = value
	}
	lastRead := device.StatValue{Description: "time of the last read"}
	if !log.last.IsZero() {
		lastRead.Value = log.last.UTC().Format(time.RFC3339)
	}
	return device.DeviceStats{
		Timestamp: now,
		Summary:   summary,
		Stats: device.StatObject{Attributes: map[string]device.StatValue{
			"value":     summary,
			"reads":     {Value: log.count, Unit: "reads", Description: "reads since the start of the plugin"},
			"last_read": lastRead,
		}},
	}
}

func (p *plugin) currentSettings() settings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings
}

// warn logs each node that is not offered, once per reason.
func (p *plugin) warn(skipped map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir, reason := range skipped {
		if p.warned[dir] != reason {
			hclog.Default().Warn("device is not offered", "dir", dir, "reason", reason)
		}
	}
	p.warned = skipped
}

// envName joins parts to the name of a variable.
func envName(parts ...string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, strings.Join(parts, "_"))
}
