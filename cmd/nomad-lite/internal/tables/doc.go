// Package tables prints objects of the API that several commands show in the same form, such as allocations,
// deployments and evaluations.
package tables
