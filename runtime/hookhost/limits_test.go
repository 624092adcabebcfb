package hookhost

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRunningCallsAreLimited(t *testing.T) {
	var l callLimiter
	one, other := claims{"a", "t", "h"}, claims{"a", "u", "h"}
	for k := range callKindCount {
		var ends []func()
		for range callLimits[k].n {
			end, err := l.startCall(one, k)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		if _, err := l.startCall(one, k); err == nil {
			t.Errorf("more than %d %s", callLimits[k].n, callLimits[k].name)
		}
		if end, err := l.startCall(other, k); err != nil {
			t.Errorf("another pays for it: %v", err)
		} else {
			end()
		}
		ends[0]()
		end, err := l.startCall(one, k)
		if err != nil {
			t.Errorf("after the end of one: %v", err)
		}
		for _, end := range append(ends[1:], end) {
			end()
		}
	}
}

func TestWritesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l callLimiter
		one := claims{"a", "t", "h"}
		count := func() (n int) {
			for l.countWrite(one) == nil {
				n++
			}
			return n
		}
		if n := count(); n != writeBurst {
			t.Errorf("%d at once", n)
		}
		if err := l.countWrite(claims{"b", "t", "h"}); err != nil {
			t.Errorf("another pays for it: %v", err)
		}
		time.Sleep(3 * time.Second)
		if n := count(); n != 3*writesPerSecond {
			t.Errorf("%d after three seconds", n)
		}
		time.Sleep(time.Hour)
		if n := count(); n != writeBurst {
			t.Errorf("%d after an hour", n)
		}
	})
}

func TestUnusedBucketsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l callLimiter
		_ = l.countWrite(claims{Hook: "acts"})
		end, _ := l.startCall(claims{Hook: "waits"}, watchCalls)
		_, _ = l.startCall(claims{Hook: "runs"}, execCalls)
		time.Sleep(time.Minute)
		end()
		_ = l.countWrite(claims{Hook: "another"})
		if len(l.buckets) != 2 || l.buckets[claims{Hook: "runs"}] == nil || l.buckets[claims{Hook: "another"}] == nil {
			t.Errorf("%v", l.buckets)
		}
	})
}
