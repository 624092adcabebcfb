// Package launch owns one plugin process: it starts the process or finds it
// again, speaks the handshake, configures the plugin, relays its log, knows at
// once when it has died, and ends it.
//
// The process is started by a Keeper, so that it is not the agent's child, and
// by the handle of a file that somebody else has checked. When a launch goes
// wrong, the error says what the plugin did, in the plugin's own words where
// there are any.
//
// It starts nothing twice and keeps no list: package supervisor does, and is
// its caller.
package launch
