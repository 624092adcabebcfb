// Package config reads the configuration files of an agent.
//
// They are Nomad's: HCL 1 or JSON, one file or a directory of files; later files
// override earlier ones. A setting that has no meaning on one machine, or is not
// supported by this build, is reported in a warning with its position; an invalid
// value is an error. The package only reads files: unset settings stay zero, and
// the agent's caller fills in the defaults.
package config
