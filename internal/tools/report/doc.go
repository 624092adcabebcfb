// Report prints the figures of a run of CI: the slowest tests and packages, the number of tests,
// the size of the binary, the initialisation of its packages, and the number of test binaries that
// link gRPC. A reader compares them with those of an earlier run; no limit is checked.
//
//	report events.json...
//
// The files contain events of `go test -json`, as `gotestsum --jsonfile-timing-events` writes them.
package main
