// Package deployment has the commands below "nomad-lite deployment".
package deployment
