// Package eval has the commands below "nomad-lite eval".
package eval
