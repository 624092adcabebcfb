// Package proto contains the protocol between a host and its plugins: the .proto files, and
// the packages with the Go code generated from them. Only packages below plugins use the
// generated code, such as plugins/driver/driverwire; other packages use the types of plugins/base,
// plugins/driver, plugins/device and plugins/hook.
package proto

//go:generate ./generate.sh
