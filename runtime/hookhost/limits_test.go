package hookhost

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestCallsUnderWay(t *testing.T) {
	var a limiter
	one, other := claims{"a", "t", "h"}, claims{"a", "u", "h"}
	for k := range kinds {
		var ends []func()
		for range limits[k].n {
			end, err := a.begin(one, k)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		if _, err := a.begin(one, k); err == nil {
			t.Errorf("more than %d %s", limits[k].n, limits[k].what)
		}
		if end, err := a.begin(other, k); err != nil {
			t.Errorf("another pays for it: %v", err)
		} else {
			end()
		}
		ends[0]()
		end, err := a.begin(one, k)
		if err != nil {
			t.Errorf("after the end of one: %v", err)
		}
		for _, end := range append(ends[1:], end) {
			end()
		}
	}
}

func TestActs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a limiter
		one := claims{"a", "t", "h"}
		count := func() (n int) {
			for a.act(one) == nil {
				n++
			}
			return n
		}
		if n := count(); n != actsAtOnce {
			t.Errorf("%d at once", n)
		}
		if err := a.act(claims{"b", "t", "h"}); err != nil {
			t.Errorf("another pays for it: %v", err)
		}
		time.Sleep(3 * time.Second)
		if n := count(); n != 3*actsPerSecond {
			t.Errorf("%d after three seconds", n)
		}
		time.Sleep(time.Hour)
		if n := count(); n != actsAtOnce {
			t.Errorf("%d after an hour", n)
		}
	})
}

func TestAccountsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a limiter
		_ = a.act(claims{Hook: "acts"})
		end, _ := a.begin(claims{Hook: "waits"}, watches)
		_, _ = a.begin(claims{Hook: "runs"}, execs)
		time.Sleep(time.Minute)
		end()
		_ = a.act(claims{Hook: "another"})
		if len(a.of) != 2 || a.of[claims{Hook: "runs"}] == nil || a.of[claims{Hook: "another"}] == nil {
			t.Errorf("%v", a.of)
		}
	})
}
