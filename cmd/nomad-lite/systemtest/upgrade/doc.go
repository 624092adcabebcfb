// Package upgrade tests that tasks survive the replacement of the nomad-lite program by another build.
package upgrade
