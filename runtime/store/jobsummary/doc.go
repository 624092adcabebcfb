// Package jobsummary counts the allocations of jobs by their state, for the API and for metrics. It only reads the store.
package jobsummary
