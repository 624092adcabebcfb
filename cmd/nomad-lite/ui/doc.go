// Package ui has the command "nomad-lite ui", which prints addresses of pages of a web interface.
package ui
