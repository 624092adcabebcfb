// Package collectorwire has what the log collector and its client share: the messages, the setup with which the client starts the
// log collector, stream names, and the rules about files in a directory to which tasks can write. Package logs is the client, and
// package collector the log collector itself.
package collectorwire
