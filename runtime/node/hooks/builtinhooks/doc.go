// Package builtinhooks has the hooks for an allocation's needs on the machine: directories, logs, network, volumes, devices,
// users, tokens and service registrations.
//
// A hook gets its dependencies through its constructor. A hook that Nomad also has keeps Nomad's event name.
package builtinhooks
