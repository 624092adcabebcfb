// Package builtinhooks has the hooks for an allocation's needs on the machine: directories, logs, network, volumes, devices,
// users, tokens and service registrations.
//
// A hook gets its dependencies through its constructor. Hooks known from Nomad keep Nomad's names in events.
package builtinhooks
