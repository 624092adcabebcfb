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

// hookCases returns the suite for a hook.
func hookCases() []testCase {
	return []testCase{
		{"says in words what it is when a person starts it", saysWhatItIs},
		{"names itself as a hook of a known protocol version", namesItself(base.TypeHook, hook.APIVersion)},
		{"takes its configuration twice, from a host that only checks it", takesConfigurationTwice},
		{"describes the hook points that it takes part in", describesItself},
		{"has a schema that fits its attachment", schemaFitsAttachment},
		{"takes part in the life of a task", callsEachPoint},
		{"takes each hook point again", callsEachPointTwice},
		{"takes poststart again for a running task", repeatsPoststart},
		{"cleans up what it has never seen", cleansUpUnseen},
		{"a call that is given up harms nothing", survivesCancelledCall},
		{"goes on in another process, at each hook point", survivesEachDeath},
		{"goes on with another agent", changesHost},
		{"takes part in many lives at once", runsManyScenarios},
		{"answers when its host refuses everything", survivesRefusal},
		{"shows its host the capability of a request", showsCapability},
	}
}

func describesItself(t tb, h *host) {
	d, err := h.use(t).hook.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	if len(d.Subscriptions) == 0 {
		t.Errorf("it takes part in nothing")
	}
	seen := map[hook.Point]bool{}
	for _, p := range d.Subscriptions {
		if seen[p.Point] {
			t.Errorf("it names %v twice", p.Point)
		}
		seen[p.Point] = true
	}
	if again, err := h.use(t).hook.Describe(t.Context()); err != nil || !reflect.DeepEqual(again.Subscriptions, d.Subscriptions) || again.AllAllocs != d.AllAllocs || again.IncludeAllocJSON != d.IncludeAllocJSON {
		t.Errorf("asked again, it describes itself as %+v, %v; it was %+v", again, err, d)
	}
}

func schemaFitsAttachment(t tb, h *host) {
	d, err := h.use(t).hook.Describe(t.Context())
	if err != nil {
		t.Fatalf("Describe: %v", err)
	}
	if err := d.Schema.Fault(); err != nil {
		t.Errorf("the schema of its attachment: %v", err)
	} else if _, err := attach(d.Schema, h.plugin.Attachment); err != nil {
		t.Errorf("the configuration of the attachment: %v\nWhich one it takes is said in Plugin.Attachment, or in plugin_test.hcl: attachment = { … }", err)
	}
}

func callsEachPoint(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range lifecycle {
		l.callPoint(t, m)
	}
}

// callsEachPointTwice repeats each call, as after the death of a host that
// could not record the call.
func callsEachPointTwice(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range lifecycle {
		exits := l.exits
		l.callPoint(t, m)
		l.exits = exits // both calls are for the same exit of the task
		l.callPoint(t, m)
	}
}

// repeatsPoststart repeats Poststart, as after a restart of the plugin process
// or of the agent while the task runs.
func repeatsPoststart(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range []hook.Point{hook.Prerun, hook.Prestart, hook.Poststart} {
		l.callPoint(t, m)
	}
	l.repeated = true
	l.callPoint(t, hook.Poststart) // by another agent
	if _, ok := l.d.Subscription(hook.Poststart); ok {
		h.use(t)
		h.crash(t)
	}
	for range 2 {
		l.callPoint(t, hook.Poststart)
	}
	l.repeated = false
	for _, m := range []hook.Point{hook.PreKill, hook.PreKilling, hook.Exited, hook.Stop, hook.Postrun, hook.Destroy} {
		l.callPoint(t, m)
	}
}

func cleansUpUnseen(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range []hook.Point{hook.PreKill, hook.PreKilling, hook.Stop, hook.Postrun, hook.Destroy} {
		l.callPoint(t, m)
	}
}

// cancelTimeouts are timeouts of an impatient host: some calls have reached the
// plugin by then, and some have not.
var cancelTimeouts = []time.Duration{200 * time.Microsecond, 2 * time.Millisecond}

func survivesCancelledCall(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range lifecycle {
		if _, ok := l.d.Subscription(m); !ok {
			continue
		}
		exits := l.exits
		for _, short := range cancelTimeouts {
			ctx, cancel := context.WithTimeout(t.Context(), short)
			_ = l.call(ctx, t, m) // the result depends on timing
			cancel()
		}
		l.exits = exits
		l.callPoint(t, m)
	}
}

func survivesEachDeath(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range lifecycle {
		if _, ok := l.d.Subscription(m); !ok {
			continue
		}
		h.use(t)
		h.crash(t)
		l.callPoint(t, m)
	}
}

func changesHost(t tb, h *host) {
	l := h.startScenario(t)
	for _, m := range []hook.Point{hook.Prerun, hook.Prestart, hook.Poststart, hook.ShutdownAlloc, hook.Shutdown} {
		l.callPoint(t, m)
	}
	h.dismissButler()
	if err := h.introduce(t.Context(), h.use(t)); err != nil {
		t.Fatalf("Configure by another agent: %v", err)
	}
	l.running, l.repeated = true, true
	for _, m := range []hook.Point{hook.Prestart, hook.Poststart, hook.PreKilling, hook.Exited, hook.Stop, hook.Postrun, hook.Destroy} {
		l.callPoint(t, m)
	}
}

func runsManyScenarios(t tb, h *host) {
	const scenarios = 16
	var lives []*allocScenario
	for range scenarios {
		lives = append(lives, h.startScenario(t))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var told []string // distinct errors; most scenarios fail for the same reason
	for _, l := range lives {
		// Each scenario runs as a case of its own, because Fatalf ends the
		// goroutine.
		wg.Go(func() {
			r := runCase(t.Context(), testCase{run: func(t tb, _ *host) {
				for _, m := range lifecycle {
					l.callPoint(t, m)
				}
			}}, h)
			if r.failed {
				mu.Lock()
				defer mu.Unlock()
				for _, line := range r.lines {
					if !slices.Contains(told, line) {
						told = append(told, line)
					}
				}
			}
		})
	}
	wg.Wait()
	for _, line := range told {
		t.Errorf("%s", line)
	}
}

func survivesRefusal(t tb, h *host) {
	l := h.startScenario(t)
	h.butler.endToken(l.meta.Token)
	for _, m := range lifecycle {
		part, ok := l.d.Subscription(m)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), min(timeoutFor(part), caseTimeout))
		err := l.call(ctx, t, m) // an error is allowed, a timeout is not
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: no answer within %v", m, min(timeoutFor(part), caseTimeout))
		}
		cancel()
	}
	h.use(t)
}

// showsCapability checks the calls of all cases.
func showsCapability(t tb, h *host) {
	h.butler.mu.Lock()
	defer h.butler.mu.Unlock()
	for capability, calls := range h.butler.unknownTokens {
		t.Errorf("it has asked the host for something with the capability %q, which no request had (%d times)", capability, calls)
	}
}
