// Package proto holds the messages and services on the wire between a host and
// its plugins: the .proto files, and in packages beside them the code made from
// them. Only the packages under plugins see those; everybody else sees the plain
// values of plugins/base and plugins/driver.
package proto

//go:generate ./generate.sh
