// Package dockertest starts a Docker engine for tests, in directories of its own.
package dockertest
