package taskrunner

import "sync"

// updates holds the current version of the task, and starts the goroutine that calls the
// Update hooks for a new version.
type updates struct {
	mu           sync.Mutex
	task         Task
	hooksPending bool   // the Update hooks have not been called for this version
	hooksRunning bool   // a goroutine is calling the Update hooks
	callHooks    func() // starts the goroutine that calls the Update hooks; nil outside Run
}

func (u *updates) current() Task {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.task
}

func (u *updates) set(task Task, withHooks bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.task = task
	u.hooksPending = u.hooksPending || withHooks
	if withHooks {
		u.startLocked()
	}
}

// setCallHooks sets the function that calls the Update hooks in a new goroutine, as long
// as takePending returns true.
func (u *updates) setCallHooks(call func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.callHooks = call
	u.startLocked()
}

func (u *updates) startLocked() {
	if u.hooksPending && u.callHooks != nil && !u.hooksRunning {
		u.hooksRunning = true
		u.callHooks()
	}
}

// takePending reports whether the Update hooks must be called for a new version.
func (u *updates) takePending() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hooksRunning, u.hooksPending = u.hooksPending, false
	return u.hooksRunning
}
