// Package cluster tests agents that are nodes of a cluster. The servers, and the other nodes, are the stock Nomad agent in the
// folder that NOMAD_LITE_PEERS names; one test has the scheduler and the HTTP API of this repository as the server. The tests
// compare what servers show with records that the tasks write themselves, and the messages between stock agents with the types of
// this repository.
package cluster
