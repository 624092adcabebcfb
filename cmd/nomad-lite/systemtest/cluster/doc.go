// Package cluster tests agents that are nodes of a cluster. The servers, and the other nodes, are the stock Nomad agent in the
// folder that NOMAD_LITE_PEERS names. The tests compare what servers show with records that the tasks write themselves.
package cluster
