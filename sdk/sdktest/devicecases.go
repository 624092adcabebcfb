package sdktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// deviceCases returns the test cases for a device plugin, in the order in which they run.
func deviceCases() []testCase {
	return []testCase{
		{"launch.without-host", Should, "a start without a host prints what the program is on standard error, and fails", consequenceWithoutHost, linkLaunch, testPluginStartWithoutHost},
		{"launch.info", Must, "the handshake succeeds, and the plugin is a device plugin of a known protocol version", "A host cannot use a plugin whose handshake line or version it does not know.", linkLaunch, testPluginInfo(base.TypeDevice, device.APIVersion)},
		{"launch.two-processes", Must, "two processes of the plugin run at once", "Nomad starts a process for the name, another for the configuration, and another for the devices.", linkLaunch, testTwoPluginProcesses},
		{"launch.exit", Should, "the process exits when the host shuts it down", "A host waits 2s for each plugin and then kills it, without the end of its work.", linkLaunch, testPluginExitOnShutdown},
		{"launch.interrupt", Should, "the process survives SIGINT", "Ctrl-C in the terminal of an agent ends the plugin before the agent.", linkLaunch, testPluginSurvivesSIGINT},
		{"config.schema", Must, "the schema of the plugin block is valid", "A host rejects the agent's configuration because of an error of the plugin.", linkDeviceConfig, testPluginSchema},
		{"config.set-twice", Must, "SetConfig succeeds twice, without information about the host", "Hosts check the configuration in a process of its own and set it again; an error prevents the start of the agent.", linkDeviceConfig, testConfigureTwice},
		{"config.malformed", Should, "SetConfig with a malformed configuration returns an error", "The plugin runs with settings that no operator has written.", linkDeviceConfig, testMalformedPluginConfig},
		{"fingerprint.first", Must, "the first fingerprint arrives at once", "Jobs that request a device wait for it.", linkDeviceFingerprint, testFirstDeviceFingerprint},
		{"fingerprint.groups", Must, "the groups have vendor, type, name, ids and valid attributes", "Nomad drops all devices, and stops the plugin for good.", linkDeviceFingerprint, testDeviceGroups},
		{"fingerprint.unique-ids", Must, "no two devices of the plugin have the same id", "Reserve gets only ids: a task could get a device of another group.", linkDeviceFingerprint, testUniqueDeviceIDs},
		{"fingerprint.second-stream", Must, "a second stream sends the same devices", "A host that restarts opens its stream while that of its predecessor is still open.", linkDeviceFingerprint, testSecondFingerprintStream},
		{"fingerprint.cancelled", Must, "a cancelled stream does not affect later ones", "After some reconnects of the host, the node has no devices.", linkDeviceFingerprint, testCancelledFingerprints},
		{"config.round-trip", Must, "each process with one configuration offers the same devices", "Hosts store the ids of devices with the tasks that have reserved them.", linkDeviceConfig, testDevicesOfTwoProcesses},
		{"reserve.one", Must, "Reserve of one device returns valid variables, mounts and devices", "The task cannot start.", linkDeviceReserve, testReserveOne},
		{"reserve.several", Must, "Reserve of all healthy devices of a group succeeds", "A job that requests several devices cannot start.", linkDeviceReserve, testReserveSeveral},
		{"reserve.twice", Must, "Reserve returns the same again for the same devices", "No call releases devices: the next task cannot start.", linkDeviceReserve, testReserveTwice},
		{"reserve.unknown-id", Must, "Reserve of an unknown device returns an error", "A task starts without the device that it requested.", linkDeviceReserve, testReserveUnknown},
		{"reserve.paths", Should, "the paths of the host in a reservation exist", "The driver fails to start the task.", linkDeviceReserve, testReservedPaths},
		{"reserve.concurrent", Must, "concurrent Reserve calls succeed", "Hosts start several tasks at once.", linkDeviceReserve, testConcurrentReserves},
		{"stats.interval", Should, "statistics arrive at once and then once per interval", "Statistics of devices are missing, or use up the processor.", linkDeviceStats, testStatsInterval},
		{"stats.zero-interval", Must, "Stats with an interval of 0 sends statistics about once per second", "A host without an interval crashes the plugin, or uses up the processor.", linkDeviceStats, testStatsZeroInterval},
		{"stats.timestamps", Should, "the statistics of each device have the time of their measurement", "Hosts drop statistics without a timestamp.", linkDeviceStats, testStatsTimestamps},
		{"stats.known-ids", Should, "statistics are of devices in the fingerprint", "Hosts cannot show statistics of unknown devices.", linkDeviceStats, testStatsOfKnownDevices},
		{"leaks.descriptors", Must, "the plugin closes the descriptors of reservations and cancelled streams", "After some thousand tasks, the plugin fails.", linkLaunch, testDeviceDescriptorLeaks},
		{"leaks.processes", Must, "no child process of a call remains, not even a zombie", "After some thousand tasks, the machine has no free pid.", linkLaunch, testDeviceProcessLeaks},
		{"fingerprint.stays-open", Must, "the stream remains open until the host closes it", "When the stream ends, Nomad drops all devices, and stops the plugin for good.", linkDeviceFingerprint, testFingerprintsStayOpen},
		{"crash.reserve", Must, "after SIGKILL of the plugin, Reserve succeeds in another process", "Hosts start a plugin that has crashed again, and keep the devices of running tasks.", linkDeviceReserve, testReserveAfterCrash},
	}
}

func testPluginSchema(t tb, h *testHost) {
	schema, err := h.launchOrGetSharedProcess(t).baseClient.ConfigSchema(t.Context())
	if err != nil {
		t.Errorf("ConfigSchema: %v", err)
	} else if err := block.Fault(schema); err != nil {
		t.Errorf("the schema of the plugin block: %v", err)
	}
}

func testMalformedPluginConfig(t tb, h *testHost) {
	p, err := h.launchPlugin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer p.shutDownOrKill()
	schema, err := p.baseClient.ConfigSchema(t.Context())
	if err != nil {
		t.Fatalf("ConfigSchema: %v", err)
	}
	if schema == nil {
		t.Skipf("the plugin has no configuration")
	}
	config, err := h.pluginConfig(t.Context(), p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	config.Plugin = []byte{0xc1} // a byte that msgpack does not use
	switch err := p.baseClient.SetConfig(t.Context(), config); {
	case err == nil:
		t.Errorf("SetConfig succeeded")
	case errors.Is(err, base.ErrPluginDown):
		t.Errorf("SetConfig: %s", p.crashReport())
	}
}

// openFingerprint opens a stream of fingerprints, and returns the first fingerprint and the stream.
func openFingerprint(ctx context.Context, t tb, p *pluginProcess) (first device.Fingerprint, rest <-chan device.Fingerprint) {
	t.Helper()
	ch, err := p.deviceClient.Fingerprint(ctx)
	if err != nil {
		t.Fatalf("Fingerprint: %v", err)
	}
	first, err = receiveValue(ch)
	if err != nil {
		t.Fatalf("the first fingerprint: %v", err)
	}
	return first, ch
}

// streamValueTimeout limits how long a stream can take to send its next value. Tests change it.
var streamValueTimeout = waitTimeout

// receiveValue returns the next value of a stream. It returns an error if the stream ends, or after streamValueTimeout.
func receiveValue[V any](ch <-chan V) (v V, err error) {
	timer := time.NewTimer(streamValueTimeout)
	defer timer.Stop()
	select {
	case v, ok := <-ch:
		if !ok {
			return v, errors.New("the stream ended instead")
		}
		return v, nil
	case <-timer.C:
		return v, fmt.Errorf("nothing arrived within %v", streamValueTimeout)
	}
}

// fingerprintDevices opens a stream, and returns the device groups of its first fingerprint. If there is no valid
// fingerprint, it skips this case and all later ones that call fingerprintDevices, because the cases fingerprint.*
// report the failure.
func (h *testHost) fingerprintDevices(t tb, p *pluginProcess) []device.Group {
	t.Helper()
	if h.skipDevicesReason == "" {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ch, err := p.deviceClient.Fingerprint(ctx)
		var f device.Fingerprint
		if err == nil {
			f, err = receiveValue(ch)
		}
		if err = errors.Join(err, f.Err); err == nil {
			return f.Groups
		}
		h.skipDevicesReason = fmt.Sprintf("no valid fingerprint: %v", err)
	}
	t.Skipf("%s", h.skipDevicesReason)
	return nil
}

// qualifiedDeviceIDs returns the ids of the devices of all groups in the form vendor/type/name/id, sorted.
func qualifiedDeviceIDs(groups []device.Group) (ids []string) {
	for _, g := range groups {
		for _, d := range g.Devices {
			ids = append(ids, g.ID.String()+"/"+d.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// healthyDevices returns the ids of the healthy devices of the group that has the most healthy devices. It
// skips the case if that group has fewer than minDevices.
func healthyDevices(t tb, h *testHost, p *pluginProcess, minDevices int) (best []string) {
	t.Helper()
	for _, g := range h.fingerprintDevices(t, p) {
		var ids []string
		for _, d := range g.Devices {
			if d.Healthy {
				ids = append(ids, d.ID)
			}
		}
		if len(ids) > len(best) {
			best = ids
		}
	}
	if len(best) < minDevices {
		t.Skipf("no group has %d healthy devices on this machine: set Plugin.Config, or config in plugin_test.hcl", minDevices)
	}
	return best
}

func testFirstDeviceFingerprint(t tb, h *testHost) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := h.launchOrGetSharedProcess(t)
	h.skipDevicesReason = "no fingerprint arrives, see fingerprint.first"
	f, _ := openFingerprint(ctx, t, p)
	h.skipDevicesReason = ""
	if errors.Is(f.Err, device.ErrDisabled) {
		h.skipDevicesReason = f.Err.Error() + ": set Plugin.Config, or config in plugin_test.hcl"
		t.Skipf("%s", h.skipDevicesReason)
	}
}

func testDeviceGroups(t tb, h *testHost) {
	if h.skipDevicesReason != "" {
		t.Skipf("%s", h.skipDevicesReason)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if f, _ := openFingerprint(ctx, t, h.launchOrGetSharedProcess(t)); f.Err != nil { // the client validates the groups
		t.Errorf("%v", f.Err)
	}
}

func testUniqueDeviceIDs(t tb, h *testHost) {
	groupOf := map[string]device.GroupID{}
	for _, g := range h.fingerprintDevices(t, h.launchOrGetSharedProcess(t)) {
		for _, d := range g.Devices {
			if other, ok := groupOf[d.ID]; ok {
				t.Errorf("the groups %q and %q have a device with the id %q", other, g.ID, d.ID)
			}
			groupOf[d.ID] = g.ID
		}
	}
}

func testSecondFingerprintStream(t tb, h *testHost) {
	want := qualifiedDeviceIDs(h.fingerprintDevices(t, h.launchOrGetSharedProcess(t)))
	streams, ctx := startOpenStreams(t, h)
	for range 3 {
		f, rest := openFingerprint(ctx, t, streams.pluginProcess)
		if f.Err != nil {
			t.Errorf("the stream ended: %v", f.Err)
		} else if got := qualifiedDeviceIDs(f.Groups); !slices.Equal(got, want) {
			t.Errorf("a stream sends %q, an earlier one %q", got, want)
		}
		go watchStream(streams, ctx, "fingerprints", rest, func(f device.Fingerprint) bool { return f.Err == nil })
	}
	streams.allOpenedAt = time.Now()
}

func testCancelledFingerprints(t tb, h *testHost) {
	if h.skipDevicesReason != "" {
		t.Skipf("%s", h.skipDevicesReason)
	}
	p := h.launchOrGetSharedProcess(t)
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if f, _ := openFingerprint(ctx, t, p); f.Err != nil {
			t.Errorf("%v", f.Err)
		}
		cancel()
	}
}

func testFingerprintsStayOpen(t tb, h *testHost) {
	if h.openStreams == nil {
		testSecondFingerprintStream(t, h)
	}
	checkStreamsStayOpen(t, h.openStreams)
}

func testDevicesOfTwoProcesses(t tb, h *testHost) {
	first, second := h.fingerprintDevices(t, h.launchConfigured(t)), h.fingerprintDevices(t, h.launchConfigured(t))
	if a, b := qualifiedDeviceIDs(first), qualifiedDeviceIDs(second); !slices.Equal(a, b) {
		t.Errorf("one process offers %q, another %q", a, b)
	}
}

// launchForReserveCase launches a plugin process for this case only, so that the reservations of other cases do
// not affect it, and returns the ids of at least minDevices healthy devices of one group. It skips the case if
// the case reserve.one has failed.
func (h *testHost) launchForReserveCase(t tb, minDevices int) (*pluginProcess, []string) {
	t.Helper()
	if h.hasReserveOneFailed {
		t.Skipf("Reserve fails, see reserve.one")
	}
	p := h.launchConfigured(t)
	return p, healthyDevices(t, h, p, minDevices)
}

// mustReserve calls Reserve, and fails the case if that returns an error.
func mustReserve(t tb, p *pluginProcess, ids []string) *device.Reservation {
	t.Helper()
	r, err := p.deviceClient.Reserve(t.Context(), ids)
	if err != nil {
		t.Fatalf("Reserve %q: %v", ids, err)
	}
	return r
}

func testReserveOne(t tb, h *testHost) {
	p, ids := h.launchForReserveCase(t, 1)
	h.hasReserveOneFailed = true
	r := mustReserve(t, p, ids[:1])
	h.hasReserveOneFailed = false
	if len(r.Env) == 0 && len(r.Mounts) == 0 && len(r.Devices) == 0 {
		t.Errorf("the reservation is empty: the task cannot find its device")
	}
}

func testReserveSeveral(t tb, h *testHost) {
	p, ids := h.launchForReserveCase(t, 2)
	mustReserve(t, p, ids)
}

func testReserveTwice(t tb, h *testHost) {
	p, ids := h.launchForReserveCase(t, 1)
	first := mustReserve(t, p, ids[:1])
	if second := mustReserve(t, p, ids[:1]); !reflect.DeepEqual(first, second) {
		t.Errorf("the first Reserve returned %+v, the second %+v", reservationWithoutEnvValues(first), reservationWithoutEnvValues(second))
	}
}

// reservationWithoutEnvValues returns a copy for messages, without the values of variables, which may be secrets.
func reservationWithoutEnvValues(r *device.Reservation) device.Reservation {
	described := *r
	described.Env = maps.Clone(r.Env)
	for name := range described.Env {
		described.Env[name] = "…"
	}
	return described
}

func testReserveUnknown(t tb, h *testHost) {
	p := h.launchOrGetSharedProcess(t)
	unknown := "sdktest-" + newUUID()
	if r, err := p.deviceClient.Reserve(t.Context(), []string{unknown}); err == nil {
		t.Errorf("Reserve of %q returned %+v", unknown, reservationWithoutEnvValues(r))
	} else if errors.Is(err, base.ErrPluginDown) {
		t.Errorf("Reserve: %s", p.crashReport())
	}
}

func testReservedPaths(t tb, h *testHost) {
	p, ids := h.launchForReserveCase(t, 1)
	r := mustReserve(t, p, ids[:1])
	for _, m := range r.Mounts {
		if _, err := os.Lstat(m.HostPath); err != nil {
			t.Errorf("a mount: %v", err)
		}
	}
	for _, d := range r.Devices {
		if _, err := os.Lstat(d.HostPath); err != nil {
			t.Errorf("a device: %v", err)
		}
	}
}

func testConcurrentReserves(t tb, h *testHost) {
	p, ids := h.launchForReserveCase(t, 2)
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { _, errs[i] = p.deviceClient.Reserve(t.Context(), []string{id}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("Reserve: %v", err)
	}
}

// openStats opens a stream of statistics, and returns the first statistics and the stream. It skips the case if the
// plugin has no statistics.
func openStats(ctx context.Context, t tb, p *pluginProcess, interval time.Duration) (first device.Stats, rest <-chan device.Stats) {
	t.Helper()
	ch, err := p.deviceClient.Stats(ctx, interval)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	timer := time.NewTimer(streamValueTimeout)
	defer timer.Stop()
	select {
	case s, ok := <-ch:
		if !ok {
			t.Skipf("the plugin has no statistics")
		}
		if s.Err != nil {
			t.Fatalf("Stats: %v", s.Err)
		}
		return s, ch
	case <-timer.C:
		t.Fatalf("no statistics within %v", streamValueTimeout)
	}
	return device.Stats{}, nil
}

// checkStatsInterval requests statistics with an interval, and fails the case if they arrive at twice the wanted
// rate or more often. It does not fail if they are late, because the machine can be busy.
func checkStatsInterval(t tb, h *testHost, interval, want time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, ch := openStats(ctx, t, h.launchOrGetSharedProcess(t), interval)
	start := time.Now()
	const samples = 3
	for range samples {
		if s, err := receiveValue(ch); err != nil || s.Err != nil {
			t.Fatalf("Stats: %v", errors.Join(err, s.Err))
		}
	}
	if d := time.Since(start); d < samples*want/2 {
		t.Errorf("after the first statistics, %d more arrived within %v, want one per %v", samples, d, want)
	}
}

func testStatsInterval(t tb, h *testHost) {
	checkStatsInterval(t, h, 300*time.Millisecond, 300*time.Millisecond)
}

func testStatsZeroInterval(t tb, h *testHost) {
	checkStatsInterval(t, h, 0, device.DefaultStatsInterval)
}

// readFirstStats opens a stream of statistics, returns the first statistics, and cancels the stream.
func readFirstStats(t tb, p *pluginProcess) device.Stats {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, _ := openStats(ctx, t, p, time.Minute)
	return s
}

func testStatsTimestamps(t tb, h *testHost) {
	for _, g := range readFirstStats(t, h.launchOrGetSharedProcess(t)).Groups {
		for _, id := range g.Undated {
			t.Errorf("the statistics of device %q of group %q have no timestamp", id, g.ID)
		}
		for id, d := range g.Instances {
			if ahead := time.Until(d.Timestamp); ahead > time.Minute {
				t.Errorf("the timestamp of device %q of group %q is %v in the future", id, g.ID, ahead.Round(time.Second))
			}
		}
	}
}

func testStatsOfKnownDevices(t tb, h *testHost) {
	p := h.launchOrGetSharedProcess(t)
	known := qualifiedDeviceIDs(h.fingerprintDevices(t, p))
	for _, g := range readFirstStats(t, p).Groups {
		for id := range g.Instances {
			if !slices.Contains(known, g.ID.String()+"/"+id) {
				t.Errorf("there are statistics of device %q of group %q, which is not in the fingerprint", id, g.ID)
			}
		}
	}
}

// callReserveAndStats calls Reserve and Stats, as a host does for one task. It ignores errors of Reserve, which
// other cases check.
func callReserveAndStats(t tb, h *testHost) {
	t.Helper()
	p := h.launchOrGetSharedProcess(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, _ = p.deviceClient.Reserve(ctx, healthyDevices(t, h, p, 1)[:1])
	ch, err := p.deviceClient.Stats(ctx, time.Minute)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	_, _ = receiveValue(ch)
}

func testDeviceDescriptorLeaks(t tb, h *testHost) {
	checkLeaks(t, "descriptors", func() (int, error) { return h.countDescriptors(t) }, func() { callReserveAndStats(t, h) })
}

func testDeviceProcessLeaks(t tb, h *testHost) {
	checkLeaks(t, "child processes", func() (int, error) { return h.countChildren(t) }, func() { callReserveAndStats(t, h) })
}

func testReserveAfterCrash(t tb, h *testHost) {
	p, ids := h.launchForReserveCase(t, 1)
	mustReserve(t, p, ids[:1])
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		t.Fatalf("kill the plugin: %v", err)
	}
	waitUntil(t, "the host detects the exit of the plugin", p.client.Exited)
	p, ids = h.launchForReserveCase(t, 1)
	mustReserve(t, p, ids[:1])
}
