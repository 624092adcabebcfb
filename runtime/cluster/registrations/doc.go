// Package registrations keeps a cluster's servers informed about this node's services.
//
// [Registrations] is the registry in which allocations register their services: it stores them, so that no allocation waits for a
// server. Its Run sends the stored registrations to the servers, and repeats each call until they have accepted it. Removals are
// stored too, until the servers have executed them.
//
// Package services of runtime/node decides which services are registered.
package registrations
