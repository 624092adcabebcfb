package hookhost

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestCallsUnderWay(t *testing.T) {
	var a accounts
	one, other := Bearer{"a", "t", "h"}, Bearer{"a", "u", "h"}
	for k := range kinds {
		var ends []func()
		for range most[k].n {
			end, err := a.begin(one, k)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		if _, err := a.begin(one, k); err == nil {
			t.Errorf("more than %d %s", most[k].n, most[k].what)
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
		var a accounts
		one := Bearer{"a", "t", "h"}
		count := func() (n int) {
			for a.act(one) == nil {
				n++
			}
			return n
		}
		if n := count(); n != actsAtOnce {
			t.Errorf("%d at once", n)
		}
		if err := a.act(Bearer{"b", "t", "h"}); err != nil {
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
		var a accounts
		_ = a.act(Bearer{Hook: "acts"})
		end, _ := a.begin(Bearer{Hook: "waits"}, watches)
		_, _ = a.begin(Bearer{Hook: "runs"}, execs)
		time.Sleep(time.Minute)
		end()
		_ = a.act(Bearer{Hook: "another"})
		if len(a.of) != 2 || a.of[Bearer{Hook: "runs"}] == nil || a.of[Bearer{Hook: "another"}] == nil {
			t.Errorf("%v", a.of)
		}
	})
}
