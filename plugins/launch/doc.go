// Package launch manages one plugin process: it starts or reattaches the process, performs the
// handshake, configures the plugin, relays its log, reports its exit without delay, and stops
// it.
//
// A Keeper starts the process, so that it is not the agent's child, and executes the
// descriptor of a file that the caller has checked. When a launch fails, the error describes
// what the plugin did, with the plugin's own output where there is any.
//
// The package keeps no list of plugins and does not prevent a second start of the same plugin:
// its caller, package supervisor, does.
package launch
