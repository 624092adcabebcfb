package model

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const minRestartInterval = 5 * time.Second

func checkRestartPolicy(r *faultReport, p *api.RestartPolicy) {
	if p == nil {
		r.addFault("Task Group should have a restart policy")
		return
	}
	mode, attempts := pointer.Value(p.Mode), pointer.Value(p.Attempts)
	if mode != api.RestartPolicyModeDelay && mode != api.RestartPolicyModeFail {
		r.addFault("Unsupported restart mode: %q", mode)
	}
	if attempts == 0 {
		if mode == api.RestartPolicyModeDelay {
			r.addFault("Restart policy %q with 0 attempts is ambiguous", mode)
		}
		return
	}
	interval, delay := pointer.Value(p.Interval), pointer.Value(p.Delay)
	if interval < minRestartInterval {
		r.addFault("Interval can not be less than %v (got %v)", minRestartInterval, interval)
	}
	if saturatingMulDuration(attempts, delay) > interval {
		r.addFault("Nomad can't restart the TaskGroup %d times in an interval of %v with a delay of %v", attempts, interval, delay)
	}
}

// saturatingMulDuration multiplies, and saturates on overflow.
func saturatingMulDuration(n int, d time.Duration) time.Duration {
	const maxDuration = time.Duration(1<<63 - 1)
	if n > 0 && d > maxDuration/time.Duration(n) {
		return maxDuration
	}
	return time.Duration(n) * d
}
