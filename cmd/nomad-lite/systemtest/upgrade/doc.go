// Package upgrade tests that tasks survive the replacement of the program by another build.
package upgrade
