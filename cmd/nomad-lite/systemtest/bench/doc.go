// Package bench measures time, memory and size, and compares the figures with budgets and with baselines that the same
// run measures.
package bench
