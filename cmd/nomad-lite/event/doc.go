// Package event has the commands below "nomad-lite event".
package event
