// Quick checks what a change touches: the format of the changed Go files, and `go vet` and
// `go test -short` of the changed packages and of the packages that import them directly.
//
// The change is the difference between the work tree, with untracked files, and the merge base of
// HEAD and -base. On main this is what is not committed. The tests of the whole program run only if
// they changed themselves. If only a package that they import changed, quick vets them, so that they still
// compile.
//
// If a Markdown file changed, quick checks the links of all documents.
//
// The exit status is 1 if a check fails.
package main
