// Package promises compares what the program offers with docs/promises, the text of what it has promised since version 0.1.
//
// A line of a file in docs/promises is one promise: a name, or a name and a value with ": " between them. A name without a
// value promises only that the name exists. An addition keeps all promises. A line that disappears, or whose value changes,
// breaks a promise; docs/reference/compatibility.md describes how a promise is changed.
//
// The package that owns the table of a kind, for example of the metrics, prints the lines in a test and calls [Check]. The
// files are in one directory, and not beside the tests, because a user reads them together, and a release is compared with
// the one before by a diff of the directory.
//
// Tests import it.
package promises
