package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

func TestPluginsBlockUntilAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed, report := make(chan struct{}), "first"
		f := newFixture(t, func(c *Config) {
			c.AgentFuncs.DescribePlugins = func() any { return report }
			c.AgentFuncs.PluginsChanged = func() <-chan struct{} { return changed }
		})
		first := f.send("GET", "/v1/agent/plugins", nil)
		index := first.Header.Get("X-Nomad-Index")
		if text := bodyText(first); text != `"first"` || index == "" {
			t.Fatalf("%s, index %s", text, index)
		}
		begin := time.Now()
		if same := f.send("GET", "/v1/agent/plugins?wait=2s&index="+index, nil); same.Header.Get("X-Nomad-Index") != index || time.Since(begin) < 2*time.Second {
			t.Errorf("without a change: index %s after %v", same.Header.Get("X-Nomad-Index"), time.Since(begin))
		}
		replied := make(chan *http.Response)
		go func() { replied <- f.send("GET", "/v1/agent/plugins?wait=1m&index="+index, nil) }()
		synctest.Wait()
		begin = time.Now()
		report = "second"
		previous := changed
		changed = make(chan struct{})
		close(previous)
		if second := <-replied; bodyText(second) != `"second"` || second.Header.Get("X-Nomad-Index") <= index || time.Since(begin) > 0 {
			t.Errorf("after a change: index %s after %v", second.Header.Get("X-Nomad-Index"), time.Since(begin))
		}
	})
}

func TestRestartPlugin(t *testing.T) {
	var restarted []string
	f := newFixture(t, func(c *Config) {
		c.AgentFuncs.RestartPlugin = func(_ context.Context, name string) error {
			if name != "known" {
				return fmt.Errorf("plugin %q: %w", name, supervisor.ErrNoPlugin)
			}
			restarted = append(restarted, name)
			return nil
		}
	})
	if r := f.send("PUT", "/v1/agent/plugins/known/restart", nil); r.StatusCode != http.StatusOK || len(restarted) != 1 {
		t.Errorf("%s, restarted %v", r.Status, restarted)
	}
	if r := f.send("PUT", "/v1/agent/plugins/unknown/restart", nil); r.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown plugin: %s", r.Status)
	}
	if r := f.send("GET", "/v1/agent/plugins/known/restart", nil); r.StatusCode != http.StatusMethodNotAllowed || len(restarted) != 1 {
		t.Errorf("a GET: %s, restarted %v", r.Status, restarted)
	}
}
