// Command mutants measures what tests find: it makes one small change at a time in files, such as a deleted statement or an
// exchanged operator, and runs the tests of packages with go test -overlay. It prints the changes that no test finds, and fails
// if a change survives that is not in the list of equivalent ones.
//
//	go run -C internal/tools ./mutants -equivalent internal/tools/mutants/equivalent.txt runtime/core/record/*.go -- ./runtime/core/record
package main
