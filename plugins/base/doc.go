// Package base is the contract of every plugin, whatever its type: the plugin describes
// itself, returns the schema of its plugin block, and accepts its configuration.
//
// The package holds the interface [Plugin] and its values, and rules that hosts and plugins share. It
// links no gRPC: package basewire has client and server of the service.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package base
