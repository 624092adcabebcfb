package taskrunner

import "sync"

// taskUpdater holds the current version of the task, and starts the goroutine that calls the
// Update hooks for a new version.
type taskUpdater struct {
	mu                 sync.Mutex
	task               Task
	dynamicUser        string // user of the task if its job names none; empty for the driver's default
	updateHooksPending bool   // the Update hooks must still be called for the current version
	updateHooksRunning bool   // a goroutine is calling the Update hooks
	startUpdateHooks   func() // starts the goroutine that calls the Update hooks; nil outside Run
}

func (u *taskUpdater) currentTask() Task {
	u.mu.Lock()
	defer u.mu.Unlock()
	task := u.task
	if task.User == "" {
		task.User = u.dynamicUser
	}
	return task
}

func (u *taskUpdater) setDynamicUser(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.dynamicUser = name
}

func (u *taskUpdater) setTask(task Task, withHooks bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.task = task
	u.updateHooksPending = u.updateHooksPending || withHooks
	if withHooks {
		u.startUpdateHooksLocked()
	}
}

// setUpdateHooksStarter sets startUpdateHooks; nil means that Run has returned. The function must start a goroutine that calls
// the Update hooks as long as takePendingUpdateHooks returns true.
func (u *taskUpdater) setUpdateHooksStarter(call func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.startUpdateHooks = call
	u.startUpdateHooksLocked()
}

func (u *taskUpdater) startUpdateHooksLocked() {
	if u.updateHooksPending && u.startUpdateHooks != nil && !u.updateHooksRunning {
		u.updateHooksRunning = true
		u.startUpdateHooks()
	}
}

// takePendingUpdateHooks reports whether the Update hooks must be called for a new version, and clears updateHooksPending.
func (u *taskUpdater) takePendingUpdateHooks() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.updateHooksRunning, u.updateHooksPending = u.updateHooksPending, false
	return u.updateHooksRunning
}
