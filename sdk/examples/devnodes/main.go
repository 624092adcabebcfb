// Command devnodes is a device plugin that offers device files of the machine to tasks: serial
// ports, /dev/kvm, /dev/fuse, USB sticks, or any other file below /dev. Its configuration has a
// block for each kind of device:
//
//	plugin "devnodes" {
//	  config {
//	    device "serial" {               # type, which jobs request
//	      vendor      = "ftdi"          # default: "host"
//	      name        = "usb"           # default: the type
//	      paths       = ["/dev/ttyUSB*"]
//	      permissions = "rw"            # default: "rw"
//	    }
//	    device "kvm" {
//	      paths = ["/dev/kvm"]
//	      count = 8                     # tasks that can use each file at once; default: 1
//	    }
//	  }
//	}
//
// A file without a wildcard in its path is a device that is unhealthy while the file is missing.
// A task that requests `device "serial"` can open the file, and has its path in SERIAL_DEVICES.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeDevice(&deviceFilesPlugin{}) }

type deviceFilesPlugin struct {
	mu            sync.Mutex
	configsByType map[string]deviceConfig // key: type
}

// deviceConfig is one block "device" of the configuration.
type deviceConfig struct {
	Vendor       string   `codec:"vendor"`
	Name         string   `codec:"name"`
	PathPatterns []string `codec:"paths"`
	Permissions  string   `codec:"permissions"`
	TasksPerFile int      `codec:"count"`
}

var (
	_ sdk.Device              = (*deviceFilesPlugin)(nil)
	_ sdk.Configurer          = (*deviceFilesPlugin)(nil)
	_ sdk.Watcher             = (*deviceFilesPlugin)(nil)
	_ sdk.DeviceStatsProvider = (*deviceFilesPlugin)(nil)
)

func (*deviceFilesPlugin) Info() sdk.DeviceInfo {
	optional := func(name, typ, value string) *hclspec.Spec {
		return hclspec.Default(hclspec.Attr(name, typ, false), hclspec.Literal(value))
	}
	return sdk.DeviceInfo{
		Name:    "devnodes",
		Version: "0.1.0",
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{
			"device": hclspec.BlockMap("device", []string{"type"}, hclspec.Object(map[string]*hclspec.Spec{
				"vendor":      optional("vendor", "string", `"host"`),
				"name":        optional("name", "string", `""`),
				"paths":       hclspec.Attr("paths", "list(string)", true),
				"permissions": optional("permissions", "string", `"rw"`),
				"count":       optional("count", "number", "1"),
			})),
		}),
	}
}

func (f *deviceFilesPlugin) Configure(_ context.Context, config *sdk.Config) error {
	var c struct {
		Devices map[string]deviceConfig `codec:"device"`
	}
	if err := config.Decode(&c); err != nil {
		return err
	}
	for typ, d := range c.Devices {
		d.Name = cmp.Or(d.Name, typ)
		c.Devices[typ] = d
		if d.TasksPerFile < 1 || d.TasksPerFile > 1000 {
			return fmt.Errorf("device %q: count is %d; 1 to 1000 are possible", typ, d.TasksPerFile)
		}
		if d.Permissions == "" || strings.Trim(d.Permissions, "rwm") != "" {
			return fmt.Errorf("device %q: permissions %q are not some of r, w and m", typ, d.Permissions)
		}
		for _, path := range d.PathPatterns {
			if _, err := filepath.Match(path, ""); err != nil || !filepath.IsAbs(path) {
				return fmt.Errorf("device %q: %q is not an absolute path, or has a faulty wildcard", typ, path)
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.configsByType = c.Devices
	return nil
}

// currentConfigsByType returns the blocks of the configuration by type. Callers must not change the map.
func (f *deviceFilesPlugin) currentConfigsByType() map[string]deviceConfig {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.configsByType
}

func (f *deviceFilesPlugin) Fingerprint(context.Context) ([]device.Group, error) {
	config := f.currentConfigsByType()
	if len(config) == 0 {
		return nil, fmt.Errorf("%w: the configuration has no block \"device\"", device.ErrDisabled)
	}
	var groups []device.Group
	for _, typ := range slices.Sorted(maps.Keys(config)) {
		c := config[typ]
		g := device.Group{
			ID:         device.GroupID{Vendor: c.Vendor, Type: typ, Name: c.Name},
			Attributes: map[string]device.Attribute{"permissions": {Value: c.Permissions}},
		}
		for _, path := range c.findDevicePaths() {
			for n := range c.TasksPerFile {
				g.Devices = append(g.Devices, newDevice(deviceID(path, n), path))
			}
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// findDevicePaths returns the paths of the device files that match the configured paths. A path without a wildcard is
// in the result even if the file is missing.
func (c deviceConfig) findDevicePaths() []string {
	var files []string
	for _, path := range c.PathPatterns {
		if !strings.ContainsAny(path, `*?[\`) {
			files = append(files, path)
			continue
		}
		matches, _ := filepath.Glob(path) // Configure has checked the pattern, which is the only possible error
		files = append(files, matches...)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// deviceID returns the id of a device of a device file: the path of the file, and for instanceIndex > 0 also the index.
// A file that several tasks can use has several devices.
func deviceID(path string, instanceIndex int) string {
	if instanceIndex == 0 {
		return path
	}
	return path + "#" + strconv.Itoa(instanceIndex)
}

// devicePathOfID returns the path of the device file of a device id.
func devicePathOfID(id string) string {
	path, _, _ := strings.Cut(id, "#")
	return path
}

func newDevice(id, path string) device.Device {
	d := device.Device{ID: id}
	number, kind, err := deviceNumberAndKind(path)
	if err != nil {
		d.HealthDescription = err.Error()
		return d
	}
	d.Healthy = true
	d.PCIBusID = pciBusID(fmt.Sprintf("/sys/dev/%s/%s/device", kind, number))
	return d
}

// deviceNumberAndKind returns the number of a device file, such as "188:0", and its kind, "char" or "block".
func deviceNumberAndKind(path string) (number, kind string, err error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return "", "", err
	}
	number = fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return number, "char", nil
	case unix.S_IFBLK:
		return number, "block", nil
	}
	return "", "", errors.New("not a device file")
}

var pciAddress = regexp.MustCompile(`[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`)

// pciBusID returns the PCI address nearest to a device in sysfs, or "" for a device that is not on
// a PCI bus.
func pciBusID(sysfsPath string) string {
	path, err := filepath.EvalSymlinks(sysfsPath)
	if err != nil {
		return ""
	}
	addresses := pciAddress.FindAllString(path, -1)
	if len(addresses) == 0 {
		return ""
	}
	return addresses[len(addresses)-1]
}

var invalidEnvChar = regexp.MustCompile(`[^A-Z0-9_]`)

// Reserve returns the device files, and also an environment variable with their paths, such as SERIAL_DEVICES, because
// a driver without isolation of devices ignores the files.
func (f *deviceFilesPlugin) Reserve(_ context.Context, req *sdk.ReserveRequest) (*device.Reservation, error) {
	c, ok := f.currentConfigsByType()[req.Group.ID.Type]
	if !ok {
		return nil, fmt.Errorf("the configuration has no device %q", req.Group.ID.Type)
	}
	r := &device.Reservation{}
	var paths []string
	for _, d := range req.Devices {
		path := devicePathOfID(d.ID)
		if slices.Contains(paths, path) {
			continue // the task has reserved one file more than once
		}
		if _, _, err := deviceNumberAndKind(path); err != nil {
			return nil, fmt.Errorf("device %q: %w", d.ID, err)
		}
		paths = append(paths, path)
		r.Devices = append(r.Devices, device.HostDevice{TaskPath: path, HostPath: path, Permissions: c.Permissions})
	}
	name := invalidEnvChar.ReplaceAllString(strings.ToUpper(req.Group.ID.Type), "_") + "_DEVICES"
	r.Env = map[string]string{name: strings.Join(paths, ",")}
	return r, nil
}

// Stats reports the time since the last use of each file, and the bytes that were read from and
// written to a block device since the start of the machine.
func (f *deviceFilesPlugin) Stats(ctx context.Context) ([]device.GroupStats, error) {
	groups, err := f.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	var stats []device.GroupStats
	for _, g := range groups {
		s := device.GroupStats{ID: g.ID, Instances: map[string]device.DeviceStats{}}
		for _, d := range g.Devices {
			if d.Healthy {
				s.Instances[d.ID] = deviceFileStats(devicePathOfID(d.ID), time.Now())
			}
		}
		stats = append(stats, s)
	}
	return stats, nil
}

func deviceFileStats(path string, now time.Time) device.DeviceStats {
	s := device.DeviceStats{Timestamp: now}
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return s
	}
	lastUse := time.Unix(stat.Atim.Unix())
	if modified := time.Unix(stat.Mtim.Unix()); modified.After(lastUse) {
		lastUse = modified
	}
	s.Summary = device.StatValue{Value: max(now.Sub(lastUse), 0).Seconds(), Unit: "s", Description: "time since the last use"}
	s.Stats.Attributes = map[string]device.StatValue{"idle": s.Summary}
	if stat.Mode&unix.S_IFMT == unix.S_IFBLK {
		counters, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)))
		if err == nil {
			maps.Copy(s.Stats.Attributes, blockDeviceStats(string(counters)))
		}
	}
	return s
}

// blockDeviceStats returns the bytes that were read from and written to a block device, from its counters in sysfs, of which
// fields 3 and 7 count sectors of 512 bytes.
func blockDeviceStats(counters string) map[string]device.StatValue {
	fields := strings.Fields(counters)
	if len(fields) < 7 {
		return nil
	}
	stats := map[string]device.StatValue{}
	for name, field := range map[string]string{"read": fields[2], "written": fields[6]} {
		if sectors, err := strconv.ParseInt(field, 10, 64); err == nil {
			stats[name] = device.StatValue{Value: sectors * 512, Unit: "B", Description: "since the start of the machine"}
		}
	}
	return stats
}

// Watch reports files that appear in and disappear from the directories of the configured paths.
func (f *deviceFilesPlugin) Watch(ctx context.Context) <-chan struct{} {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil // without a channel, Fingerprint is called only at its interval
	}
	events := os.NewFile(uintptr(fd), "inotify")
	for _, c := range f.currentConfigsByType() {
		for _, path := range c.PathPatterns {
			// The error is ignored: a missing directory is not watched.
			_, _ = unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ATTRIB|unix.IN_ONLYDIR)
		}
	}
	changes := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { events.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			if _, err := events.Read(buffer); err != nil {
				return
			}
			select {
			case changes <- struct{}{}:
			default: // a change is already pending
			}
		}
	}()
	return changes
}
