// Package hookwire is the gRPC side of package hook.
//
// Calls cross the wire in both directions: calls for hook points go from the host ([Client]) to the
// plugin ([RegisterServer]), and the plugin's own requests go to a separate socket of the host
// ([DialHost], [RegisterHost]), which survives restarts of the agent.
//
// The package is not part of the contract: other modules cannot rely on it.
package hookwire
