// Package netns creates, finds and removes network namespaces that outlive the process that
// created them: each is bound to a file, as `ip netns` does.
//
// It configures nothing in a namespace except the loopback interface. Packages bridge and cni
// connect a namespace to a network.
package netns
