// Package launch manages one plugin process: it starts or reattaches the process, performs
// the handshake, configures the plugin, relays its log, reports its exit without delay, and
// stops it.
//
// A [Keeper] starts the process, so that it is not the agent's child. The executed file is
// the descriptor that the caller has checked. If a launch fails, the error describes what
// the plugin did, with the plugin's own output where there is any.
//
// The package has no list of plugins, and can start a plugin twice; package supervisor
// prevents that.
package launch
