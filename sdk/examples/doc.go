// Package examples holds task drivers to read and to copy: sleeper has the least
// that a driver must have, script runs processes.
package examples
