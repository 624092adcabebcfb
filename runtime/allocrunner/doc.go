// Package allocrunner runs one allocation: it calls the hooks of the
// allocation, runs its tasks, opens their gates in the order of the lifecycle,
// and stops them in the order of a kill. Upward it reports facts: the states of
// the tasks and what they add up to.
//
// It does not know why an allocation exists, and decides about no other: it is
// handed allocations and versions of them. Read allocrunner.go first; siblings.go
// and killorder.go hold the rules.
package allocrunner
