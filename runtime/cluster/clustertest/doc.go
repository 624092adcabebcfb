// Package clustertest is the server side of the protocol between a Nomad cluster and its nodes, for tests.
//
// [Start] starts one server, [StartCluster] several that share one state and have a leader. A test is the scheduler and
// the operator: it places and stops allocations, writes variables, purges nodes, and reads what the nodes have reported. With
// [Cluster.PutAlloc] a real scheduler decides instead of the test.
// A [Fault] changes or drops single messages. [Cluster.Calls] lists the calls of the nodes.
//
// The answers have the keys, types and errors of the servers of Nomad 2.0; the tests of the package compare them with a
// stock server. What differs on purpose: a server without a leader answers at once and not after five seconds, TTLs have
// no jitter, and nothing is scheduled unless the test does it.
//
// Only tests import the package.
package clustertest
