// Package fileaccess decides which files a job's text makes the client read, and reads them.
//
// The author of a job is not always its operator. The job file functions file, filebase64, fileexists and fileset go through one
// Reader. It follows a path name by name on open descriptors, decides before each look-up whether the text may learn about the
// name, and checks the opened file. See DESIGN.md for the rule.
//
// The package reads no variable file: the operator names those. Package jobspec calls it; the command line's package jobfile
// makes the Policy.
package fileaccess
