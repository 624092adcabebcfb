// Package namespace has the commands below "nomad-lite namespace".
package namespace
