// Package servers calls the servers of one region of a Nomad cluster.
//
// A [Pool] has the list of servers, keeps one session to the server that it uses, and moves to the next server when the
// connection fails. It answers the calls of servers on every open session.
//
// The package knows no method of a server but the ping; packages membership, replica and others make the calls.
package servers
