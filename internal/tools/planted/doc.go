// Command planted checks that tests find defects: it plants each defect of a list alone, with go test -overlay, and fails
// if the tests of the packages pass.
//
//	go run -C internal/tools ./planted -defects runtime/core/taskrunner/testdata/defects.txt ./runtime/core/allocrunner
package main
