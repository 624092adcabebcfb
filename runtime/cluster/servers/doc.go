// Package servers calls the servers in one region of a Nomad cluster.
//
// A [Pool] has the server list, keeps one session to the server in use, and moves to the next server when the connection fails.
// It answers servers' calls on every open session.
//
// The ping is the only server method the package knows; packages membership, replica and others make the calls.
package servers
