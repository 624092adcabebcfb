// Package cni connects network namespaces to networks configured by an operator for CNI plugins, and
// lists these networks and plugins.
//
// The package runs plugins that other programs provide. It records only the calls in progress: the
// caller stores the configuration with which a namespace was connected.
package cni
