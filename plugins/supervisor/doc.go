// Package supervisor keeps the plugins of one node alive.
//
// It owns the processes: one per plugin of the catalog, launched once and all
// at the same time, launched again when they die. A builtin that nobody needs
// rests, and a builtin hook does from the beginning. It decides which plugin
// serves which driver or hook, keeps each driver's fingerprint, passes on what
// drivers say about tasks, and ends the processes.
//
// It knows nothing of jobs and touches no task. A task runner asks it for a
// driver by name, and asks again when the plugin behind that driver has died.
package supervisor
