// Package alloc has the commands below "nomad-lite alloc".
//
// Each command reads or changes one allocation through the HTTP API.
package alloc
