// Package builtinhooks has the hooks that give an allocation what it needs from the machine:
// directories, logs, network, volumes, devices, users, tokens and service registrations.
//
// A hook gets its dependencies through its constructor. Where Nomad has the same hook, the hook has
// the name that Nomad uses in events.
package builtinhooks
