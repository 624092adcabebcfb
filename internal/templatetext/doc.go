// Package templatetext analyses the texts of Go templates without executing them.
//
// The text may be untrusted: the parser of package text/template is recursive, and the functions of this package limit its
// depth. They read nothing but their arguments. The template hook limits the depth of the texts that it parses with this
// package, and package model finds the variables that a template needs.
package templatetext
