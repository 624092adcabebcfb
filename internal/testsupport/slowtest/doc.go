// Package slowtest separates the tests that take long from those that "go test ./..." runs. A test that takes more than some seconds
// calls Skip. CI runs it. A long test calls SkipLong: "make test-long" runs it, and CI does not. A test that takes a second skips
// itself with -short instead, which "make quick" sets.
//
// Tests and helper packages of tests import it.
package slowtest
