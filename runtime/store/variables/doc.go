// Package variables changes a store's variables: with check-and-set, and with locks that expire unless their holder renews
// them.
//
// It owns the leases of locks and rejects invalid requests; package model has the rules for paths and sizes. Callers read
// variables from a store snapshot. A variable's items are secret: no error and no log line contains them.
package variables
