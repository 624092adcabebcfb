// Package slowtest separates the tests that take long from those that "go test ./..." runs.
package slowtest
