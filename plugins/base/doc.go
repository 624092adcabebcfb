// Package base is the contract of every plugin, whatever its type: the plugin describes
// itself, returns the schema of its plugin block, and accepts its configuration.
//
// The package holds the interface [Plugin] and its values, and rules that hosts and plugins share. It
// links no gRPC: package basewire has client and server of the service.
package base
