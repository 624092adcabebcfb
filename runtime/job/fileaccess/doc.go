// Package fileaccess decides which files the text of a job makes the client read, and reads them.
//
// The author of a job is not always its operator. The functions file, filebase64, fileexists and fileset of a job file
// go through one Reader, which follows a path name by name on open descriptors, decides before each look-up whether the
// text may learn of the name, and checks the opened file. See DESIGN.md for the rule.
//
// The package reads no variable file: the operator names those. Package jobspec calls it; package jobfile of the command
// line makes the Policy.
package fileaccess
