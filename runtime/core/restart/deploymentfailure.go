package restart

import "time"

// DeploymentFailure is why a task made its allocation unhealthy for a deployment. It is stored, because the task's checks and
// records are gone when a rollback has stopped the allocation.
type DeploymentFailure struct {
	Time         time.Time
	DeploymentID string
	Task         string
	Reason       string // verdict text, which names a failing check with its output
	// End is how the task's last run had ended, if at the time of the verdict the task did not run, or not for long;
	// nil otherwise.
	End *RunEnd
}
