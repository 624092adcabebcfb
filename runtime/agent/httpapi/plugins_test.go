package httpapi

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"
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
