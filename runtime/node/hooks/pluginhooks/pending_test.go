package pluginhooks

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
)

// unknownPlugins are plugins with a still unknown type.
type unknownPlugins struct {
	mu      sync.Mutex
	plugins map[string]FirstLaunchState
	changed chan struct{}
}

func newUnknownPlugins(names ...string) *unknownPlugins {
	u := &unknownPlugins{plugins: make(map[string]FirstLaunchState), changed: make(chan struct{})}
	for _, name := range names {
		u.plugins[strings.TrimSuffix(name, " failed")] = LaunchPending
		if strings.HasSuffix(name, " failed") {
			u.plugins[strings.TrimSuffix(name, " failed")] = LaunchFailed
		}
	}
	return u
}

func (u *unknownPlugins) get() (map[string]FirstLaunchState, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.plugins), u.changed
}

func (u *unknownPlugins) set(name string, up bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.plugins[name] = LaunchFailed
	if up {
		delete(u.plugins, name)
	}
	close(u.changed)
	u.changed = make(chan struct{})
}

// A starting allocation waits for each plugin that may take part in every allocation, but not for a failed one.
func TestPendingWaitsForUnknownPlugins(t *testing.T) {
	const slowPluginText, brokenPluginText = "plugin slow, which may be a hook of every allocation,", "plugin broken, which may be a hook of every allocation,"
	for what, c := range map[string]struct {
		plugins     []string
		rules       []OperatorRule
		meta        map[string]string
		at          map[string]time.Duration // at has the times when launches succeed or fail
		ups         string
		end         time.Duration // end is the time when the context ends
		waits       time.Duration
		told, warns string
	}{
		"all are known":                  {},
		"it comes at once":               {plugins: []string{"slow"}, at: map[string]time.Duration{"slow": time.Second}, ups: "slow", waits: time.Second},
		"it is slow":                     {plugins: []string{"slow"}, at: map[string]time.Duration{"slow": 5 * time.Second}, ups: "slow", waits: 5 * time.Second, told: slowPluginText},
		"it fails":                       {plugins: []string{"broken"}, at: map[string]time.Duration{"broken": time.Second}, waits: time.Second, warns: "broken"},
		"one is slow, and one fails":     {plugins: []string{"broken", "slow"}, at: map[string]time.Duration{"broken": 3 * time.Second, "slow": 5 * time.Second}, ups: "slow", waits: 5 * time.Second, told: brokenPluginText + slowPluginText, warns: "broken"},
		"it never has an outcome":        {plugins: []string{"slow"}, waits: time.Minute, told: slowPluginText, warns: "slow"},
		"it failed before":               {plugins: []string{"broken failed"}},
		"one failed before":              {plugins: []string{"broken failed", "slow"}, at: map[string]time.Duration{"slow": 10 * time.Second}, ups: "slow", waits: 10 * time.Second, told: slowPluginText},
		"the allocation is stopped":      {plugins: []string{"slow"}, end: 3 * time.Second, waits: 3 * time.Second, told: slowPluginText},
		"the operator says what it does": {plugins: []string{"slow"}, rules: []OperatorRule{{Name: "slow"}}},
		"the job attaches it":            {plugins: []string{"slow"}, meta: map[string]string{"lite_hook_slow": ""}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUnknownPlugins(c.plugins...)
				var log bytes.Buffer
				p := New(Config{PluginsOfUnknownType: u.get, Rules: c.rules, Logger: hclog.New(&hclog.LoggerOptions{Output: &log})})
				pending := p.PluginLaunchWaiterOrNil(&api.Allocation{TaskGroup: "g", Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g"), Meta: c.meta}}}})
				if waits := pending != nil; waits != (c.waits > 0) {
					t.Fatalf("waits: %v", waits)
				}
				if pending == nil {
					return
				}
				for name, at := range c.at {
					time.AfterFunc(at, func() { u.set(name, name == c.ups) })
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.end > 0 {
					time.AfterFunc(c.end, cancel)
				}
				begin, told := time.Now(), ""
				pending(ctx, func(e *api.TaskEvent) {
					told += strings.TrimSuffix(strings.TrimPrefix(e.Message, "waiting for "), " to start")
				})
				if waited := time.Since(begin); waited != c.waits {
					t.Errorf("waited %s, want %s", waited, c.waits)
				}
				if told != c.told {
					t.Errorf("told of %q, want %q", told, c.told)
				}
				warned := ""
				if _, name, ok := strings.Cut(log.String(), "may be a hook of every allocation: plugin="); ok {
					warned = strings.TrimSpace(name)
				}
				if warned != c.warns {
					t.Errorf("warned of %q, want %q:\n%s", warned, c.warns, &log)
				}
			})
		})
	}
}
