// Package version determines the version of this binary, and has the command that prints it.
package version
