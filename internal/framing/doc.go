// Package framing sends and receives the messages between the helper processes of a data
// directory, the keeper and the log collector, and their clients. It defines the form of a message
// and the first message of a connection. Each process defines its own operations.
//
// A message is a JSON object with the field names of its Go struct. On the unix stream socket,
// four bytes with its length, big-endian, precede it, and its descriptors are sent with its first
// byte. The first message in each direction is a Hello. Its form is the same in all versions, so
// that a process can find out that its peer speaks another version before it reads any other
// message.
package framing
