// Package agentsocket finds the unix socket of an agent on this machine.
//
// It has the default paths of sockets and data directories, and decides whether a socket can
// be trusted: commands send tokens and variables there. Package apiclient connects to the
// socket, and package agent creates it.
package agentsocket
