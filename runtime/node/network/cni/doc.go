// Package cni connects network namespaces to networks that an operator has configured for CNI plugins,
// and lists these networks and plugins.
//
// The plugins are programs of others, which the package runs. It records only the calls
// in progress: the caller stores the configuration with which a namespace was connected.
package cni
