// Package heldport opens the TCP socket on which an agent serves its API, and stores it in the keeper, so that no other process can
// bind the port between two agents.
//
// The agent calls it once the keeper runs. It does not serve the socket, and releases nothing at the agent's end: the port is free
// when agent and keeper have exited. While no agent is connected, the keeper answers for the socket, as package keeperserver says.
package heldport
