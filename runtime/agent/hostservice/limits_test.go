package hostservice

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRunningCallsAreLimited(t *testing.T) {
	var l callLimiter
	one, other := tokenClaims{"a", "t", "h"}, tokenClaims{"a", "u", "h"}
	for k := range callKindCount {
		var endFuncs []func()
		for range callLimits[k].max {
			end, err := l.countRunningCall(one, k)
			if err != nil {
				t.Fatal(err)
			}
			endFuncs = append(endFuncs, end)
		}
		if _, err := l.countRunningCall(one, k); err == nil {
			t.Errorf("more than %d %s", callLimits[k].max, callLimits[k].description)
		}
		if end, err := l.countRunningCall(other, k); err != nil {
			t.Errorf("another pays for it: %v", err)
		} else {
			end()
		}
		endFuncs[0]()
		end, err := l.countRunningCall(one, k)
		if err != nil {
			t.Errorf("after the end of one: %v", err)
		}
		for _, end := range append(endFuncs[1:], end) {
			end()
		}
	}
}

func TestWritesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l callLimiter
		one := tokenClaims{"a", "t", "h"}
		count := func() (n int) {
			for l.countStateChange(one) == nil {
				n++
			}
			return n
		}
		if n := count(); n != writeBurst {
			t.Errorf("%d at once", n)
		}
		if err := l.countStateChange(tokenClaims{"b", "t", "h"}); err != nil {
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
		_ = l.countStateChange(tokenClaims{Hook: "acts"})
		end, _ := l.countRunningCall(tokenClaims{Hook: "waits"}, watchCalls)
		_, _ = l.countRunningCall(tokenClaims{Hook: "runs"}, execCalls)
		time.Sleep(time.Minute)
		end()
		_ = l.countStateChange(tokenClaims{Hook: "another"})
		if len(l.countsByToken) != 2 || l.countsByToken[tokenClaims{Hook: "runs"}] == nil || l.countsByToken[tokenClaims{Hook: "another"}] == nil {
			t.Errorf("%v", l.countsByToken)
		}
	})
}
