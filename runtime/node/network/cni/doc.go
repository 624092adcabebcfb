// Package cni connects network namespaces to networks that an operator has configured for CNI plugins,
// and lists these networks and plugins.
//
// The plugins are programs of others, which the package runs. It keeps no records: the caller stores
// the configuration with which a namespace was connected.
package cni
