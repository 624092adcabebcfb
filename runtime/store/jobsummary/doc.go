// Package jobsummary counts jobs' allocations by their state, for the API and for metrics. It only reads the store.
package jobsummary
