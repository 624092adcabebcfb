package restart

import "time"

// DeploymentFailure is why a task made its allocation unhealthy for a deployment. It is stored, because the checks and the records
// of the task are gone when a rollback has stopped the allocation.
type DeploymentFailure struct {
	Time         time.Time
	DeploymentID string
	Task         string
	Reason       string // text of the verdict, which names a failing check with its output
	// End is how the task's last run had ended, if the task did not run at the time of the verdict, or not for long; nil otherwise.
	End *RunEnd
}
