// Package variables changes the variables of a store: with check-and-set, and
// with locks that expire unless their holder renews them.
//
// It owns the leases of the locks and rejects invalid requests; package model has the
// rules for paths and sizes. Callers read variables from a snapshot of the store. The
// items of a variable are secret: no error and no log line contains them.
package variables
