// Package supervisor keeps the plugins of one node running.
//
// It manages one process per plugin of the catalog. The processes are launched
// concurrently, and launched again when they die. An unused builtin is stopped, and a
// builtin hook is not started before it is used. The supervisor decides which plugin serves
// which driver or hook, keeps each driver's fingerprint and the devices of each device
// plugin, delivers the drivers' task events, and stops the processes.
//
// The supervisor handles neither jobs nor tasks. A task runner requests a driver by name, and
// requests it again when the plugin that serves the driver has died.
package supervisor
