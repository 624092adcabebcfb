// Package server has the commands below "nomad-lite server".
package server
