package taskrunner

import "sync"

// taskUpdater holds the current version of the task, and starts the goroutine that calls the
// Update hooks for a new version.
type taskUpdater struct {
	mu           sync.Mutex
	task         Task
	dynamicUser  string // user of a task that names none; empty for the driver's default
	hooksPending bool   // the Update hooks have not been called for this version
	hooksRunning bool   // a goroutine is calling the Update hooks
	callHooks    func() // starts the goroutine that calls the Update hooks; nil outside Run
}

func (u *taskUpdater) current() Task {
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

func (u *taskUpdater) set(task Task, withHooks bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.task = task
	u.hooksPending = u.hooksPending || withHooks
	if withHooks {
		u.startHooksLocked()
	}
}

// setCallHooks sets the function that calls the Update hooks in a new goroutine, as long
// as takePendingHooks returns true.
func (u *taskUpdater) setCallHooks(call func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.callHooks = call
	u.startHooksLocked()
}

func (u *taskUpdater) startHooksLocked() {
	if u.hooksPending && u.callHooks != nil && !u.hooksRunning {
		u.hooksRunning = true
		u.callHooks()
	}
}

// takePendingHooks reports whether the Update hooks must be called for a new version.
func (u *taskUpdater) takePendingHooks() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hooksRunning, u.hooksPending = u.hooksPending, false
	return u.hooksRunning
}
