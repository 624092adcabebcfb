// Lines prints the number of lines of Go code in each folder of the project. A line counts if it has
// code: blank lines and lines with nothing but comments do not count.
//
//	lines [directory]
//
// The directory is the root of a work tree, by default the root of the current one, so that
// another commit can be counted with the same program.
//
// The columns are product, generated code and test code. Generated code has the comment of
// https://go.dev/s/generatedcode. Test code is the files of tests, the folders systemtest and peertest,
// and the packages that neither a program nor a public package imports, directly or indirectly.
// Nested modules and testdata are not counted.
package main
