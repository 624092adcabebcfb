// Package variables changes the variables of a store: with check-and-set, and
// with locks that end when nobody renews them.
//
// It owns the leases of the locks and says what is refused; the rules about paths
// and sizes are those of package model. It reads nothing for its callers: a
// snapshot of the store does that. What is in a variable is secret: no error and
// no log line has any of it.
package variables
