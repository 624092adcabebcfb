// Package datadir has the default paths of the data directories of agents, which an agent and its clients on the same machine
// must agree on. The package creates no directory.
package datadir
