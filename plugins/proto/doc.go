// Package proto holds the messages and services on the wire between a host and
// its plugins: the .proto files, and in packages beside them the code made from
// them. Only the packages under plugins see those; everybody else sees the plain
// values of plugins/base, plugins/driver and plugins/hook.
package proto

//go:generate ./generate.sh
