// Package config reads the configuration files of an agent.
//
// They are Nomad's: HCL or JSON, one file or a directory of them, later ones
// over earlier ones. What has no meaning on one machine, or is not in this
// build, is named in one warning each, with its place; a value that makes no
// sense is an error. The package reads files, and nothing else: what is not set
// stays zero, and whoever starts an agent fills in the defaults.
package config
