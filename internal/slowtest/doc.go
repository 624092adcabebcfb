// Package slowtest separates the tests that take long from those that "go test ./..." runs. A test that takes more than some seconds
// calls Skip, and one that takes more than two minutes SkipLong, which CI leaves out. A test that takes a second skips itself with
// -short instead, which "make quick" sets.
//
// Tests and helper packages of tests import it.
package slowtest
