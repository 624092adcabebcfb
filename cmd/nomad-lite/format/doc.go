// Package format has the command "nomad-lite fmt", which formats HCL files.
package format
