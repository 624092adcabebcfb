package hooks

import (
	"fmt"
	"strconv"
)

// The task runner reads the stored state of these hooks by name.
const (
	TaskDirName          = "task_dir"
	DevicesName          = "devices" // its variables are passed to the driver apart from the task's environment
	VolumesName          = "volumes"
	WorkloadUserHookName = "workload_users"
)

// workloadUserKey is the key for the user ID in the state of the hook workload_users.
const workloadUserKey = "dynamic_user_ugid"

// StoredWorkloadUserID returns the user ID in the stored state of the hook workload_users, 0 for none.
func StoredWorkloadUserID(hookState map[string]string) uint32 {
	id, _ := strconv.ParseUint(hookState[workloadUserKey], 10, 32) // a task with an invalid id gets another
	return uint32(id)
}

// NewWorkloadUserState returns the state stored by the hook workload_users for a task with a user ID.
func NewWorkloadUserState(userID uint32) map[string]string {
	return map[string]string{workloadUserKey: strconv.FormatUint(uint64(userID), 10)}
}

// WorkloadUserNameOrEmpty returns the user name for a user ID, "" for 0.
func WorkloadUserNameOrEmpty(userID uint32) string {
	if userID == 0 {
		return ""
	}
	return fmt.Sprintf("nomad-%d", userID)
}
