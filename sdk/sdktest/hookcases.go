package sdktest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// hookCases returns the test cases for a hook, in the order in which they run.
func hookCases() []testCase {
	return append(launchCases("hook", base.TypeHook, hook.APIVersion, "A host checks a new version of the plugin beside the running one."), []testCase{
		{"config.set-twice", Must, "SetConfig succeeds twice, without information about the host", "Hosts check the configuration in a process of its own and set it again; an error prevents the start of the agent.", linkConfig, testSetConfigSucceedsTwice},
		{"describe.points", Must, "Describe returns each hook point once, and always the same", "Hosts call only the described hook points, and cache them.", linkHookLife, testDescribeIsStableAndUnique},
		{"attachment.schema", Must, "the configured attachment fits a valid schema", "Jobs cannot attach the hook.", linkHookAttach, testAttachmentFitsSchema},
		{"attachment.malformed", Should, "a malformed attachment does not end the process", "One job ends the plugin for all jobs.", linkHookAttach, testMalformedAttachmentIsNoCrash},
		{"points.once", Must, "each hook point succeeds in the life of a task", "An error fails tasks, or is an event of each task.", linkHookLife, testEachHookPointSucceeds},
		{"points.twice", Must, "each hook point succeeds when it is repeated", "Hosts repeat a call whose result they do not know.", linkHookRules, testEachHookPointCanBeRepeated},
		{"poststart.repeated", Must, "Poststart succeeds again for a running task", "After a restart of the plugin or the agent, the hook loses its running tasks.", linkHookPoststart, testPoststartCanBeRepeated},
		{"cleanup.unknown-task", Must, "the hook points at the end succeed for an unknown task", "Hosts retry a failed cleanup, and allocations are not removed.", linkHookRules, testCleanupOfUnknownTaskSucceeds},
		{"call.cancelled", Must, "cancelled calls do not affect later ones", "A killed task or a timeout would break the hook for all tasks.", linkHookRules, testCancelledHookCallsAreHarmless},
		{"crash.each-point", Must, "each hook point succeeds in a new process of the plugin", "State in memory is lost in a crash, an update and a reboot.", linkHookPrestart, testHookPointsSucceedAfterKill},
		{"host.restart", Must, "the hook works with another agent", "Tasks outlive the agent.", linkHookPoststart, testHookWorksWithRestartedHost},
		{"concurrency.allocs", Must, "concurrent calls for many allocations succeed", "Hosts call for all tasks at once.", linkHookRules, testConcurrentAllocsSucceed},
		{"leaks.descriptors", Must, "the plugin closes the descriptors of destroyed allocations", "After some thousand allocations, the plugin fails.", linkLaunch, testHookLeaksNoDescriptors},
		{"host.denied-calls", Must, "the hook returns when the host denies its calls", "Tasks wait for the timeout of each hook point.", linkHookHost, testHookReturnsWhenHostDenies},
		{"host.token", Must, "calls to the host have the token of a request", "The host denies calls with another token.", linkHookHost, testHostCallsHaveKnownTokens},
	}...)
}

func testDescribeIsStableAndUnique(t tb, h *testHost) {
	d, err := h.launchOrGetSharedProcess(t).hookClient.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	if len(d.Subscriptions) == 0 {
		t.Errorf("Describe returned no hook point")
	}
	seen := map[hook.Point]bool{}
	for _, p := range d.Subscriptions {
		if seen[p.Point] {
			t.Errorf("Describe returned %v twice", p.Point)
		}
		seen[p.Point] = true
	}
	if again, err := h.launchOrGetSharedProcess(t).hookClient.Describe(t.Context()); err != nil || !reflect.DeepEqual(again.Subscriptions, d.Subscriptions) || again.AllAllocs != d.AllAllocs || again.IncludeAllocJSON != d.IncludeAllocJSON {
		t.Errorf("a second Describe returned %+v, %v, want %+v", again, err, d)
	}
}

func testAttachmentFitsSchema(t tb, h *testHost) {
	d, err := h.launchOrGetSharedProcess(t).hookClient.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	if err := h.testedPlugin.configEncoder().SchemaFault(d.AttachmentSchema); err != nil {
		t.Errorf("the schema of its attachment: %v", err)
	} else if _, err := h.encodeAttachment(d.AttachmentSchema, h.testedPlugin.Attachment); err != nil {
		t.Errorf("the attachment does not fit: %v\nset Plugin.Attachment, or attachment = { … } in plugin_test.hcl", err)
	}
}

func testMalformedAttachmentIsNoCrash(t tb, h *testHost) {
	l := h.newScenario(t)
	l.requestMeta.AttachmentJSON = []byte(`{"name":`)
	for _, m := range lifecyclePoints {
		if _, ok := l.description.Subscription(m); !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		err := l.callHookPointWithoutDeadline(ctx, t, m) // a hook that does not read its attachment succeeds
		cancel()
		if errors.Is(err, hook.ErrPluginDown) {
			t.Errorf("%v with a malformed attachment: %s", m, h.sharedProcess.crashReport())
			return
		}
	}
}

func testEachHookPointSucceeds(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range lifecyclePoints {
		l.callHookIfSubscribed(t, m)
	}
}

// testEachHookPointCanBeRepeated calls the hook twice for each hook point: a host repeats a call if it
// crashed before it recorded the result.
func testEachHookPointCanBeRepeated(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range lifecyclePoints {
		exits := l.taskExitCount
		l.callHookIfSubscribed(t, m)
		l.taskExitCount = exits // both calls are for the same exit of the task
		l.callHookIfSubscribed(t, m)
	}
}

// testPoststartCanBeRepeated repeats Poststart, as after a restart of the plugin process
// or of the agent while the task runs.
func testPoststartCanBeRepeated(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range []hook.Point{hook.Prerun, hook.Prestart, hook.Poststart} {
		l.callHookIfSubscribed(t, m)
	}
	l.isPoststartRepeated = true
	l.callHookIfSubscribed(t, hook.Poststart) // as by an agent that has restarted
	if _, ok := l.description.Subscription(hook.Poststart); ok {
		h.launchOrGetSharedProcess(t)
		h.killSharedProcess(t)
	}
	for range 2 {
		l.callHookIfSubscribed(t, hook.Poststart)
	}
	l.isPoststartRepeated = false
	for _, m := range []hook.Point{hook.PreKill, hook.PreKilling, hook.Exited, hook.Stop, hook.Postrun, hook.Destroy} {
		l.callHookIfSubscribed(t, m)
	}
}

func testCleanupOfUnknownTaskSucceeds(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range []hook.Point{hook.PreKill, hook.PreKilling, hook.Stop, hook.Postrun, hook.Destroy} {
		l.callHookIfSubscribed(t, m)
	}
}

// shortCallTimeouts are timeouts after which calls of a hook are cancelled: the first before a call reaches the
// plugin, the last when a call has reached it, even on a busy machine.
var shortCallTimeouts = []time.Duration{200 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond}

func testCancelledHookCallsAreHarmless(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range lifecyclePoints {
		if _, ok := l.description.Subscription(m); !ok {
			continue
		}
		exits := l.taskExitCount
		for _, timeout := range shortCallTimeouts {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			_ = l.callHookPointWithoutDeadline(ctx, t, m) // error or not, depending on timing
			cancel()
		}
		l.taskExitCount = exits
		l.callHookIfSubscribed(t, m)
	}
}

func testHookPointsSucceedAfterKill(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range lifecyclePoints {
		if _, ok := l.description.Subscription(m); !ok {
			continue
		}
		h.launchOrGetSharedProcess(t)
		h.killSharedProcess(t)
		l.callHookIfSubscribed(t, m)
	}
}

func testHookWorksWithRestartedHost(t tb, h *testHost) {
	l := h.newScenario(t)
	for _, m := range []hook.Point{hook.Prerun, hook.Prestart, hook.Poststart, hook.ShutdownAlloc, hook.Shutdown} {
		l.callHookIfSubscribed(t, m)
	}
	h.closeHookHost()
	if err := h.configureHook(t.Context(), h.launchOrGetSharedProcess(t)); err != nil {
		t.Fatalf("Configure by another agent: %v", err)
	}
	l.isTaskRestored, l.isPoststartRepeated = true, true
	for _, m := range []hook.Point{hook.Prestart, hook.Poststart, hook.PreKilling, hook.Exited, hook.Stop, hook.Postrun, hook.Destroy} {
		l.callHookIfSubscribed(t, m)
	}
}

func testConcurrentAllocsSucceed(t tb, h *testHost) {
	const scenarioCount = 16
	var scenarios []*allocScenario
	for range scenarioCount {
		scenarios = append(scenarios, h.newScenario(t))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var distinctErrors []string // without duplicates, because most scenarios fail for the same reason
	for _, l := range scenarios {
		// Each goroutine runs a case of its own, because Fatalf, which a case calls, ends the
		// goroutine.
		wg.Go(func() {
			r := runCase(t.Context(), testCase{run: func(t tb, _ *testHost) {
				for _, m := range lifecyclePoints {
					l.callHookIfSubscribed(t, m)
				}
			}}, h)
			if r.failed {
				mu.Lock()
				defer mu.Unlock()
				for _, line := range r.logLines {
					if !slices.Contains(distinctErrors, line) {
						distinctErrors = append(distinctErrors, line)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, line := range distinctErrors {
		t.Errorf("%s", line)
	}
}

func testHookReturnsWhenHostDenies(t tb, h *testHost) {
	l := h.newScenario(t)
	h.hookHost.expireToken(l.requestMeta.Token)
	for _, m := range lifecyclePoints {
		part, ok := l.description.Subscription(m)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), min(hookCallTimeout(part), waitTimeout))
		err := l.callHookPointWithoutDeadline(ctx, t, m) // an error of the hook is accepted, but the call must not block
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: no answer within %v", m, min(hookCallTimeout(part), waitTimeout))
		}
		cancel()
	}
	h.launchOrGetSharedProcess(t)
}

// testHostCallsHaveKnownTokens fails if the hook has called the host with an unknown
// capability token in any case of the suite.
func testHostCallsHaveKnownTokens(t tb, h *testHost) {
	h.hookHost.mu.Lock()
	defer h.hookHost.mu.Unlock()
	for capability, count := range h.hookHost.callsByUnknownToken {
		t.Errorf("%d calls had the token %q, which no request had", count, capability)
	}
}
