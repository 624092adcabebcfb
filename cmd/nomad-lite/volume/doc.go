// Package volume has the commands below "nomad-lite volume".
package volume
