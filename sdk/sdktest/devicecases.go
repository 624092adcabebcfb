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

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// deviceCases returns the test cases for a device plugin, in the order in which they run.
func deviceCases() []testCase {
	return append(launchCases("device plugin", base.TypeDevice, device.APIVersion, "Nomad starts a process for the name, another for the configuration, and another for the devices."), []testCase{
		{"config.schema", Must, "the schema of the plugin block is valid", "A host rejects the agent's configuration because of an error of the plugin.", linkDeviceConfig, testPluginConfigSchemaIsValid},
		{"config.set-twice", Must, "SetConfig succeeds twice, without information about the host", "Hosts check the configuration in a process of its own and set it again; an error prevents the start of the agent.", linkDeviceConfig, testSetConfigSucceedsTwice},
		{"config.malformed", Should, "SetConfig with a malformed configuration returns an error", "The plugin runs with settings that no operator has written.", linkDeviceConfig, testMalformedPluginConfigFails},
		{"fingerprint.first", Must, "the first fingerprint arrives at once", "Jobs that request a device wait for it.", linkDeviceFingerprint, testFirstDeviceFingerprintArrives},
		{"fingerprint.groups", Must, "the groups have vendor, type, name, ids and valid attributes", "Nomad drops all devices, and stops the plugin for good.", linkDeviceFingerprint, testDeviceGroupsAreValid},
		{"fingerprint.unique-ids", Must, "no two devices of the plugin have the same id", "Reserve gets only ids: a task could get a device of another group.", linkDeviceFingerprint, testDeviceIDsAreUnique},
		{"fingerprint.second-stream", Must, "a second stream sends the same devices", "A host that restarts opens its stream while that of its predecessor is still open.", linkDeviceFingerprint, testStreamsSendSameDevices},
		{"fingerprint.cancelled", Must, "a cancelled stream does not affect later ones", "After some reconnects of the host, the node has no devices.", linkDeviceFingerprint, testCancelledFingerprintIsHarmless},
		{"config.round-trip", Must, "each process with one configuration offers the same devices", "Hosts store the ids of devices with the tasks that have reserved them.", linkDeviceConfig, testProcessesOfferSameDevices},
		{"reserve.one", Must, "Reserve of one device returns valid variables, mounts and devices", "The task cannot start.", linkDeviceReserve, testReserveOneDeviceSucceeds},
		{"reserve.several", Must, "Reserve of all healthy devices of a group succeeds", "A job that requests several devices cannot start.", linkDeviceReserve, testReserveAllHealthySucceeds},
		{"reserve.twice", Must, "Reserve returns the same again for the same devices", "No call releases devices: the next task cannot start.", linkDeviceReserve, testReserveTwiceReturnsSame},
		{"reserve.unknown-id", Must, "Reserve of an unknown device returns an error", "A task starts without the device that it requested.", linkDeviceReserve, testReserveUnknownDeviceFails},
		{"reserve.paths", Should, "the paths of the host in a reservation exist", "The driver fails to start the task.", linkDeviceReserve, testReservedHostPathsExist},
		{"reserve.concurrent", Must, "concurrent Reserve calls succeed", "Hosts start several tasks at once.", linkDeviceReserve, testConcurrentReservesSucceed},
		{"stats.interval", Should, "statistics arrive at once and then once per interval", "Statistics of devices are missing, or use up the processor.", linkDeviceStats, testStatsFollowInterval},
		{"stats.zero-interval", Must, "Stats with an interval of 0 sends statistics about once per second", "A host without an interval crashes the plugin, or uses up the processor.", linkDeviceStats, testZeroStatsIntervalIsOneSecond},
		{"stats.timestamps", Should, "the statistics of each device have the time of their measurement", "Hosts drop statistics without a timestamp.", linkDeviceStats, testDeviceStatsHaveTimestamps},
		{"stats.known-ids", Should, "statistics are of devices in the fingerprint", "Hosts cannot show statistics of unknown devices.", linkDeviceStats, testStatsAreOfKnownDevices},
		{"leaks.descriptors", Must, "the plugin closes the descriptors of reservations and cancelled streams", "After some thousand tasks, the plugin fails.", linkLaunch, testDevicePluginLeaksNoDescriptors},
		{"leaks.processes", Must, "no child process of a call remains, not even a zombie", "After some thousand tasks, the machine has no free pid.", linkLaunch, testDevicePluginLeaksNoProcesses},
		{"fingerprint.stays-open", Must, "the stream remains open until the host closes it", "When the stream ends, Nomad drops all devices, and stops the plugin for good.", linkDeviceFingerprint, testFingerprintStreamStaysOpen},
		{"crash.reserve", Must, "after SIGKILL of the plugin, Reserve succeeds in another process", "Hosts start a plugin that has crashed again, and keep the devices of running tasks.", linkDeviceReserve, testReserveAfterPluginKill},
	}...)
}

func testPluginConfigSchemaIsValid(t tb, h *testHost) {
	schema, err := h.launchOrGetSharedProcess(t).baseClient.ConfigSchema(t.Context())
	if err != nil {
		t.Errorf("ConfigSchema: %v", err)
	} else if err := h.testedPlugin.configEncoder().SchemaFault(schema); err != nil {
		t.Errorf("the schema of the plugin block: %v", err)
	}
}

func testMalformedPluginConfigFails(t tb, h *testHost) {
	p, err := h.launchUnconfiguredPlugin()
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
	config, err := h.encodePluginConfig(t.Context(), p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	config.MsgpackConfig = []byte{0xc1} // a byte that msgpack does not use
	switch err := p.baseClient.SetConfig(t.Context(), config); {
	case err == nil:
		t.Errorf("SetConfig succeeded")
	case errors.Is(err, base.ErrPluginDown):
		t.Errorf("SetConfig: %s", p.crashReport())
	}
}

// openFingerprintStream opens a stream of fingerprints, and returns the first fingerprint and the stream.
func openFingerprintStream(ctx context.Context, t tb, p *pluginProcess) (first device.Fingerprint, rest <-chan device.Fingerprint) {
	t.Helper()
	ch, err := p.deviceClient.Fingerprint(ctx)
	if err != nil {
		t.Fatalf("Fingerprint: %v", err)
	}
	first, err = receiveNextStreamValue(ch)
	if err != nil {
		t.Fatalf("the first fingerprint: %v", err)
	}
	return first, ch
}

// streamValueTimeout limits how long a stream can take to send its next value. Tests change it.
var streamValueTimeout = waitTimeout

// receiveNextStreamValue returns the next value of a stream. It returns an error if the stream ends, or after
// streamValueTimeout.
func receiveNextStreamValue[V any](ch <-chan V) (v V, err error) {
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

// fingerprintDevicesOrSkip opens a stream, and returns the device groups of its first fingerprint. If there is no valid
// fingerprint, it skips this case and all later ones that call fingerprintDevicesOrSkip, because the cases
// fingerprint.* report the failure.
func (h *testHost) fingerprintDevicesOrSkip(t tb, p *pluginProcess) []device.Group {
	t.Helper()
	if h.skipDevicesReason == "" {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ch, err := p.deviceClient.Fingerprint(ctx)
		var f device.Fingerprint
		if err == nil {
			f, err = receiveNextStreamValue(ch)
		}
		err = errors.Join(err, f.Err)
		switch {
		case err != nil:
			h.skipDevicesReason = fmt.Sprintf("no valid fingerprint: %v", err)
		case f.FailureReason != "":
			h.skipDevicesReason = noDevicesReason(f)
		default:
			return f.Groups
		}
	}
	t.Skipf("%s", h.skipDevicesReason)
	return nil
}

// noDevicesReason returns why a fingerprint without an error, or with ErrDisabled, has no healthy devices.
func noDevicesReason(f device.Fingerprint) string {
	const advice = "set Plugin.Config, or config in plugin_test.hcl"
	if f.Err != nil {
		return fmt.Sprintf("%v: %s", f.Err, advice)
	}
	return fmt.Sprintf("the plugin could not look for devices: %s: %s", f.FailureReason, advice)
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

// mostHealthyDeviceIDsOrSkip returns the ids of the healthy devices of the group that has the most healthy devices. It
// skips the case if that group has fewer than minDevices.
func mostHealthyDeviceIDsOrSkip(t tb, h *testHost, p *pluginProcess, minDevices int) (best []string) {
	t.Helper()
	unhealthy := ""
	for _, g := range h.fingerprintDevicesOrSkip(t, p) {
		var ids []string
		for _, d := range g.Devices {
			if d.Healthy {
				ids = append(ids, d.ID)
			} else if unhealthy == "" {
				unhealthy = fmt.Sprintf(" (%s/%s is unhealthy: %s)", g.ID, d.ID, d.HealthDescription)
			}
		}
		if len(ids) > len(best) {
			best = ids
		}
	}
	if len(best) < minDevices {
		t.Skipf("no group has %d healthy devices on this machine%s: set Plugin.Config, or config in plugin_test.hcl", minDevices, unhealthy)
	}
	return best
}

func testFirstDeviceFingerprintArrives(t tb, h *testHost) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := h.launchOrGetSharedProcess(t)
	h.skipDevicesReason = "no fingerprint arrives, see fingerprint.first"
	f, _ := openFingerprintStream(ctx, t, p)
	h.skipDevicesReason = ""
	if errors.Is(f.Err, device.ErrDisabled) || f.Err == nil && f.FailureReason != "" {
		h.skipDevicesReason = noDevicesReason(f)
		t.Skipf("%s", h.skipDevicesReason)
	}
}

func testDeviceGroupsAreValid(t tb, h *testHost) {
	if h.skipDevicesReason != "" {
		t.Skipf("%s", h.skipDevicesReason)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if f, _ := openFingerprintStream(ctx, t, h.launchOrGetSharedProcess(t)); f.Err != nil { // the client validates the groups
		t.Errorf("%v", f.Err)
	}
}

func testDeviceIDsAreUnique(t tb, h *testHost) {
	groupOf := map[string]device.GroupID{}
	for _, g := range h.fingerprintDevicesOrSkip(t, h.launchOrGetSharedProcess(t)) {
		for _, d := range g.Devices {
			if other, ok := groupOf[d.ID]; ok {
				t.Errorf("the groups %q and %q have a device with the id %q", other, g.ID, d.ID)
			}
			groupOf[d.ID] = g.ID
		}
	}
}

func testStreamsSendSameDevices(t tb, h *testHost) {
	h.fingerprintDevicesOrSkip(t, h.launchOrGetSharedProcess(t))
	streams, ctx := launchPluginForWatchedStreams(t, h)
	want := qualifiedDeviceIDs(h.fingerprintDevicesOrSkip(t, streams.pluginProcess)) // config.round-trip compares processes
	for range 3 {
		f, rest := openFingerprintStream(ctx, t, streams.pluginProcess)
		if f.Err != nil {
			t.Errorf("the stream ended: %v", f.Err)
		} else if got := qualifiedDeviceIDs(f.Groups); !slices.Equal(got, want) {
			t.Errorf("a stream sends %q, an earlier one %q", got, want)
		}
		go watchStream(streams, ctx, "fingerprints", rest, func(f device.Fingerprint) bool { return f.Err == nil })
	}
	streams.allOpenedAt = time.Now()
}

func testCancelledFingerprintIsHarmless(t tb, h *testHost) {
	if h.skipDevicesReason != "" {
		t.Skipf("%s", h.skipDevicesReason)
	}
	p := h.launchOrGetSharedProcess(t)
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if f, _ := openFingerprintStream(ctx, t, p); f.Err != nil {
			t.Errorf("%v", f.Err)
		}
		cancel()
	}
}

func testFingerprintStreamStaysOpen(t tb, h *testHost) {
	if h.watchedStreams == nil {
		testStreamsSendSameDevices(t, h)
	}
	checkStreamsStayOpen(t, h.watchedStreams)
}

func testProcessesOfferSameDevices(t tb, h *testHost) {
	first, second := h.fingerprintDevicesOrSkip(t, h.launchConfiguredPlugin(t)), h.fingerprintDevicesOrSkip(t, h.launchConfiguredPlugin(t))
	if a, b := qualifiedDeviceIDs(first), qualifiedDeviceIDs(second); !slices.Equal(a, b) {
		t.Errorf("one process offers %q, another %q", a, b)
	}
}

// launchForReserveCaseOrSkip launches a plugin process for this case only, so that the reservations of other cases do
// not affect it, and returns the ids of at least minDevices healthy devices of one group. It skips the case if
// the case reserve.one has failed.
func (h *testHost) launchForReserveCaseOrSkip(t tb, minDevices int) (*pluginProcess, []string) {
	t.Helper()
	if h.hasReserveOneFailed {
		t.Skipf("Reserve fails, see reserve.one")
	}
	p := h.launchConfiguredPlugin(t)
	return p, mostHealthyDeviceIDsOrSkip(t, h, p, minDevices)
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

func testReserveOneDeviceSucceeds(t tb, h *testHost) {
	p, ids := h.launchForReserveCaseOrSkip(t, 1)
	h.hasReserveOneFailed = true
	r := mustReserve(t, p, ids[:1])
	h.hasReserveOneFailed = false
	if len(r.Env) == 0 && len(r.Mounts) == 0 && len(r.Devices) == 0 {
		t.Errorf("the reservation is empty: the task cannot find its device")
	}
}

func testReserveAllHealthySucceeds(t tb, h *testHost) {
	p, ids := h.launchForReserveCaseOrSkip(t, 2)
	mustReserve(t, p, ids)
}

func testReserveTwiceReturnsSame(t tb, h *testHost) {
	p, ids := h.launchForReserveCaseOrSkip(t, 1)
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

func testReserveUnknownDeviceFails(t tb, h *testHost) {
	p := h.launchOrGetSharedProcess(t)
	unknown := "sdktest-" + newUUID()
	if r, err := p.deviceClient.Reserve(t.Context(), []string{unknown}); err == nil {
		t.Errorf("Reserve of %q returned %+v", unknown, reservationWithoutEnvValues(r))
	} else if errors.Is(err, base.ErrPluginDown) {
		t.Errorf("Reserve: %s", p.crashReport())
	}
}

func testReservedHostPathsExist(t tb, h *testHost) {
	p, ids := h.launchForReserveCaseOrSkip(t, 1)
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

func testConcurrentReservesSucceed(t tb, h *testHost) {
	p, ids := h.launchForReserveCaseOrSkip(t, 2)
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

// openStatsStreamOrSkip opens a stream of statistics, and returns the first statistics and the stream. It skips the
// case if the plugin has no statistics, or could not look for devices, because Stats then fails for the same reason.
func openStatsStreamOrSkip(ctx context.Context, t tb, h *testHost, p *pluginProcess, interval time.Duration) (first device.Stats, rest <-chan device.Stats) {
	t.Helper()
	h.fingerprintDevicesOrSkip(t, p)
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
			t.Fatalf("the stream has an error in place of the first statistics: %v", s.Err)
		}
		return s, ch
	case <-timer.C:
		t.Fatalf("no statistics within %v", streamValueTimeout)
	}
	return device.Stats{}, nil
}

// checkStatsNotTooFrequent requests statistics with requestedInterval, and fails the case if they arrive at twice
// the rate of expectedInterval or more often. It does not fail if they are late, because the machine can be busy.
func checkStatsNotTooFrequent(t tb, h *testHost, requestedInterval, expectedInterval time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, ch := openStatsStreamOrSkip(ctx, t, h, h.launchOrGetSharedProcess(t), requestedInterval)
	start := time.Now()
	const samples = 3
	for range samples {
		if s, err := receiveNextStreamValue(ch); err != nil || s.Err != nil {
			t.Fatalf("Stats: %v", errors.Join(err, s.Err))
		}
	}
	if d := time.Since(start); d < samples*expectedInterval/2 {
		t.Errorf("after the first statistics, %d more arrived within %v, want one per %v", samples, d, expectedInterval)
	}
}

func testStatsFollowInterval(t tb, h *testHost) {
	checkStatsNotTooFrequent(t, h, 300*time.Millisecond, 300*time.Millisecond)
}

func testZeroStatsIntervalIsOneSecond(t tb, h *testHost) {
	checkStatsNotTooFrequent(t, h, 0, device.DefaultStatsInterval)
}

// readFirstStats opens a stream of statistics, returns the first statistics, and cancels the stream.
func readFirstStats(t tb, h *testHost, p *pluginProcess) device.Stats {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, _ := openStatsStreamOrSkip(ctx, t, h, p, time.Minute)
	return s
}

func testDeviceStatsHaveTimestamps(t tb, h *testHost) {
	for _, g := range readFirstStats(t, h, h.launchOrGetSharedProcess(t)).Groups {
		for _, id := range g.DeviceIDsWithoutTimestamp {
			t.Errorf("the statistics of device %q of group %q have no timestamp", id, g.ID)
		}
		for id, d := range g.Instances {
			if ahead := time.Until(d.Timestamp); ahead > time.Minute {
				t.Errorf("the timestamp of device %q of group %q is %v in the future", id, g.ID, ahead.Round(time.Second))
			}
		}
	}
}

func testStatsAreOfKnownDevices(t tb, h *testHost) {
	p := h.launchOrGetSharedProcess(t)
	known := qualifiedDeviceIDs(h.fingerprintDevicesOrSkip(t, p))
	for _, g := range readFirstStats(t, h, p).Groups {
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
	_, _ = p.deviceClient.Reserve(ctx, mostHealthyDeviceIDsOrSkip(t, h, p, 1)[:1])
	ch, err := p.deviceClient.Stats(ctx, time.Minute)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	_, _ = receiveNextStreamValue(ch)
}

func testDevicePluginLeaksNoDescriptors(t tb, h *testHost) {
	checkLeaks(t, "descriptors", func() (int, error) { return h.countDescriptorsOfPlugin(t) }, func() { callReserveAndStats(t, h) })
}

func testDevicePluginLeaksNoProcesses(t tb, h *testHost) {
	checkLeaks(t, "child processes", func() (int, error) { return h.countChildrenOfPlugin(t) }, func() { callReserveAndStats(t, h) })
}

func testReserveAfterPluginKill(t tb, h *testHost) {
	p, ids := h.launchForReserveCaseOrSkip(t, 1)
	mustReserve(t, p, ids[:1])
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		t.Fatalf("kill the plugin: %v", err)
	}
	waitUntil(t, "the host detects the exit of the plugin", p.goPluginClient.Exited)
	p, ids = h.launchForReserveCaseOrSkip(t, 1)
	mustReserve(t, p, ids[:1])
}
