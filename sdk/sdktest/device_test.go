package sdktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/base/basewire"
	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/device/devicewire"
)

// envDeviceDefect names the environment variable with the defect of the device plugin that this
// binary serves.
const envDeviceDefect = "SDKTEST_DEVICE_DEFECT"

// defectiveDevice is a device plugin without the SDK, with a configurable defect.
type defectiveDevice struct {
	defect   string
	idPrefix string

	mu           sync.Mutex
	lock         *os.File // lock is held from SetConfig until ConfigSchema or Fingerprint
	configured   bool
	fingerprints int
	reserved     map[string]bool
	reserving    int
}

func serveDefectiveDevice(defect string) {
	if os.Getenv(basewire.Handshake.MagicCookieKey) == "" {
		if defect != "prints nothing without a host" {
			fmt.Fprintln(os.Stderr, "this is a plugin")
		}
		os.Exit(1)
	}
	switch defect {
	case "exits on SIGINT":
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		go func() { <-interrupts; os.Exit(2) }()
	}
	d := &defectiveDevice{defect: defect, reserved: map[string]bool{}, idPrefix: "gadget-"}
	if defect == "invents ids" {
		d.idPrefix = newUUID()
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: basewire.Handshake,
		Plugins: plugin.PluginSet{
			basewire.PluginName:   &basewire.GRPCPlugin{Impl: d},
			devicewire.PluginName: &devicewire.GRPCPlugin{Impl: d},
		},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return basewire.NewServerWithoutSizeLimits(append(opts, grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				if defect == "sends statistics without a timestamp" && strings.HasSuffix(info.FullMethod, "/Stats") {
					stream = undatedStream{stream}
				}
				return handler(srv, stream)
			})))
		},
	})
	switch defect {
	case "does not exit":
		select {}
	case "marks reservations with a file":
		os.Remove(markerFile())
	}
}

// undatedStream removes the timestamps of the messages that it sends.
type undatedStream struct{ grpc.ServerStream }

func (s undatedStream) SendMsg(m any) error {
	text, err := protojson.Marshal(m.(proto.Message))
	if err != nil {
		return err
	}
	text = []byte(strings.ReplaceAll(string(text), `"timestamp":"`+fixedTimestamp+`"`, `"timestamp":null`))
	return errors.Join(protojson.Unmarshal(text, m.(proto.Message)), s.ServerStream.SendMsg(m))
}

const fixedTimestamp = "2020-01-02T03:04:05Z"

func (d *defectiveDevice) PluginInfo(context.Context) (*base.Info, error) {
	info := &base.Info{Type: base.TypeDevice, APIVersions: []string{"v0.1.0"}, Version: "0.1.0", Name: "gadget"}
	if d.defect == "has another API version" {
		info.APIVersions = []string{"v0.7.0"}
	}
	return info, nil
}

// markerFile is in the directory of the suite, which all processes of the plugin share.
func markerFile() string { return filepath.Join(os.TempDir(), "reserved") }

func (d *defectiveDevice) ConfigSchema(context.Context) (*hclspec.Spec, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lock.Close() // nil if the defect is another
	def := "1"
	if d.defect == "has a default of another type" {
		def = `"1"`
	}
	return hclspec.Object(map[string]*hclspec.Spec{"count": hclspec.Default(hclspec.Attr("count", "number", false), hclspec.Literal(def))}), nil
}

func (d *defectiveDevice) SetConfig(_ context.Context, c *base.Config) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.configured && d.defect == "accepts one configuration" {
		return errors.New("configured already")
	}
	d.configured = true
	if d.defect == "locks a file until it is used" {
		d.lock.Close()
		var err error
		if d.lock, err = os.OpenFile(filepath.Join(os.TempDir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
			err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
		if err != nil {
			return err
		}
	}
	var config struct {
		Count int `codec:"count"`
	}
	if err := hclspec.Unmarshal(c.MsgpackConfig, &config); err != nil && d.defect != "accepts a malformed configuration" {
		return err
	}
	return nil
}

func (d *defectiveDevice) groups() []device.Group {
	id := func(n int) string { return fmt.Sprint(d.idPrefix, n) }
	g := device.Group{ID: device.GroupID{Vendor: "acme", Type: "gadget", Name: "one"}}
	for n := range 3 {
		g.Devices = append(g.Devices, device.Device{ID: id(n), Healthy: true})
	}
	other := device.Group{ID: device.GroupID{Vendor: "acme", Type: "gadget", Name: "two"}, Devices: []device.Device{{ID: id(3), Healthy: true}}}
	switch d.defect {
	case "has one id in two groups":
		other.Devices[0].ID = id(0)
	case "has a unit that is unknown":
		g.Attributes = map[string]device.Attribute{"size": {Value: 3, Unit: "inch"}}
	}
	return []device.Group{g, other}
}

func (d *defectiveDevice) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	d.mu.Lock()
	d.fingerprints++
	count := d.fingerprints
	d.lock.Close()
	d.mu.Unlock()
	out := make(chan device.Fingerprint)
	go func() {
		switch {
		case d.defect == "sends nothing", d.defect == "fingerprints six streams" && count > 6:
			<-ctx.Done()
			return
		case d.defect == "fingerprints one stream at once":
			d.mu.Lock() // until the stream ends
			defer d.mu.Unlock()
		}
		first := device.Fingerprint{Groups: d.groups()}
		switch d.defect {
		case "cannot look for devices":
			first = device.Fingerprint{FailureReason: "no bus"}
		case "has only broken devices":
			first.Groups = first.Groups[1:]
			first.Groups[0].Devices[0].Healthy, first.Groups[0].Devices[0].HealthDescription = false, "no power"
		}
		select {
		case out <- first:
		case <-ctx.Done():
			return
		}
		if d.defect == "ends the stream" {
			close(out)
			return
		}
		<-ctx.Done()
	}()
	return out, nil
}

func (d *defectiveDevice) Reserve(_ context.Context, ids []string) (*device.Reservation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := map[string]bool{}
	for _, g := range d.groups() {
		for _, dev := range g.Devices {
			known[dev.ID] = true
		}
	}
	r := &device.Reservation{
		Env:     map[string]string{"GADGETS": strings.Join(ids, ",")},
		Devices: []device.HostDevice{{TaskPath: "/dev/null", HostPath: "/dev/null", Permissions: "rw"}},
	}
	for _, id := range ids {
		if !known[id] && d.defect != "reserves unknown ids" {
			return nil, errors.New("unknown device")
		}
		if d.reserved[id] && d.defect == "reserves once" {
			return nil, errors.New("reserved already")
		}
		d.reserved[id] = true
	}
	switch d.defect {
	case "reserves one device at a time":
		if len(ids) > 1 {
			return nil, errors.New("too many devices")
		}
	case "refuses concurrent calls":
		if d.reserving++; d.reserving > 1 {
			d.reserving--
			return nil, errors.New("busy")
		}
		d.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		d.mu.Lock()
		d.reserving--
	case "returns an empty reservation":
		return &device.Reservation{}, nil
	case "returns a relative path":
		r.Mounts = []device.Mount{{HostPath: "here", TaskPath: "/there"}}
	case "returns a path that is missing":
		r.Devices[0].HostPath = "/dev/no-such-gadget"
	case "returns another reservation each time":
		r.Env["N"] = newUUID()
	case "keeps a descriptor":
		_, _ = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "leaves a zombie":
		_, _ = syscall.ForkExec("/bin/true", []string{"true"}, nil) // not os/exec, which holds a descriptor of the process
	case "marks reservations with a file":
		pid := strconv.Itoa(os.Getpid())
		if owner, err := os.ReadFile(markerFile()); err == nil && string(owner) != pid {
			return nil, errors.New("reserved by another process")
		}
		if err := os.WriteFile(markerFile(), []byte(pid), 0o600); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (d *defectiveDevice) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	at, err := time.Parse(time.RFC3339, fixedTimestamp)
	if err != nil {
		return nil, err
	}
	switch d.defect {
	case "ignores short intervals":
		if interval < time.Second {
			interval = time.Millisecond
		}
	case "ignores long intervals":
		interval = min(interval, 200*time.Millisecond)
	case "cannot look for devices":
		return nil, errors.New("no bus")
	case "measures in the future":
		at = time.Now().Add(time.Hour)
	}
	sample := device.Stats{}
	for _, g := range d.groups() {
		stats := device.GroupStats{ID: g.ID, Instances: map[string]device.DeviceStats{}}
		for _, dev := range g.Devices {
			stats.Instances[dev.ID] = device.DeviceStats{Timestamp: at}
		}
		sample.Groups = append(sample.Groups, stats)
	}
	if d.defect == "has statistics of unknown devices" {
		maps.Copy(sample.Groups[0].Instances, map[string]device.DeviceStats{"ghost": {Timestamp: at}})
	}
	out := make(chan device.Stats)
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case out <- sample:
			case <-ctx.Done():
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func defectiveDevicePlugin(defect string) Plugin {
	return Plugin{Path: os.Args[0], Env: []string{envDeviceDefect + "=" + defect}}
}

func TestDeviceWithoutDefects(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a plugin in each case of the contract suite")
	}
	t.Parallel()
	Device(t, defectiveDevicePlugin("none"))
}

// The cases that need devices are skipped with the reason of the plugin, also those of statistics, which fail for the same reason.
func TestCasesWithoutDevicesAreSkippedWithTheReason(t *testing.T) {
	t.Parallel()
	for defect, want := range map[string]map[string]string{
		"cannot look for devices": {
			"fingerprint.first": "the plugin could not look for devices: no bus: set Plugin.Config",
			"reserve.one":       "the plugin could not look for devices: no bus: set Plugin.Config",
			"stats.timestamps":  "the plugin could not look for devices: no bus: set Plugin.Config",
		},
		"has only broken devices": {
			"reserve.one": `no group has 1 healthy devices on this machine (acme/gadget/two/gadget-3 is unhealthy: no power): set Plugin.Config`,
		},
	} {
		p := defectiveDevicePlugin(defect)
		for id, message := range want {
			p.OnlyCasePatterns = id
			var results []Result
			if err := CheckEach(t.Context(), t.Context(), p, func(r Result) { results = append(results, r) }); err != nil {
				t.Errorf("%s, %s: %v", defect, id, err)
			}
			if len(results) != 1 || results[0].Verdict != Skip || !strings.Contains(strings.Join(results[0].Messages, "\n"), message) {
				t.Errorf("%s, %s: %+v, want %q", defect, id, results, message)
			}
		}
	}
}

// TestDeviceDefects checks that the suite reports exactly the cases that a defect concerns.
func TestDeviceDefects(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the suite once per defect; TestEachCaseCanFail has other defects")
	}
	for _, test := range []struct {
		defect string
		want   []string // want: ids of the findings
	}{
		{"none", nil},
		{"prints nothing without a host", []string{"launch.without-host"}},
		{"has another API version", []string{"launch.info"}},
		{"locks a file until it is used", []string{"launch.two-processes"}},
		{"does not exit", []string{"launch.exit"}},
		{"exits on SIGINT", []string{"launch.interrupt"}},
		{"has a default of another type", []string{"config.schema"}},
		{"accepts one configuration", []string{"config.set-twice"}},
		{"invents ids", []string{"config.round-trip"}},
		{"accepts a malformed configuration", []string{"config.malformed"}},
		{"sends nothing", []string{"fingerprint.first"}},
		{"has a unit that is unknown", []string{"fingerprint.groups"}},
		{"has one id in two groups", []string{"fingerprint.unique-ids"}},
		{"fingerprints one stream at once", []string{"fingerprint.second-stream"}},
		{"fingerprints six streams", []string{"fingerprint.cancelled"}},
		{"ends the stream", []string{"fingerprint.stays-open"}},
		{"returns an empty reservation", []string{"reserve.one"}},
		{"returns a relative path", []string{"reserve.one"}},
		{"reserves one device at a time", []string{"reserve.several"}},
		{"reserves once", []string{"reserve.twice"}},
		{"returns another reservation each time", []string{"reserve.twice"}},
		{"reserves unknown ids", []string{"reserve.unknown-id"}},
		{"returns a path that is missing", []string{"reserve.paths"}},
		{"refuses concurrent calls", []string{"reserve.concurrent"}},
		{"ignores short intervals", []string{"stats.interval"}},
		{"ignores long intervals", []string{"stats.zero-interval"}},
		{"sends statistics without a timestamp", []string{"stats.timestamps"}},
		{"measures in the future", []string{"stats.timestamps"}},
		{"has statistics of unknown devices", []string{"stats.known-ids"}},
		{"keeps a descriptor", []string{"leaks.descriptors"}},
		{"leaves a zombie", []string{"leaks.processes"}},
		{"marks reservations with a file", []string{"crash.reserve"}},
	} {
		t.Run(test.defect, func(t *testing.T) {
			t.Parallel()
			p := defectiveDevicePlugin(test.defect)
			p.CaseTimeout = 40 * time.Second
			// With all cases, the table takes minutes: make test-defects.
			if os.Getenv("NOMAD_LITE_ALL_CASES") == "" {
				p.OnlyCasePatterns = strings.Join(slices.Concat(test.want, []string{"launch.info", "config.set-twice", "fingerprint.groups"}), ",")
			}
			ids, text := findings(t, p)
			if !slices.Equal(ids, test.want) {
				t.Errorf("findings %q, want %q\n%s", ids, test.want, text)
			}
		})
	}
}
