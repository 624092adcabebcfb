// Package system has the commands below "nomad-lite system".
package system
