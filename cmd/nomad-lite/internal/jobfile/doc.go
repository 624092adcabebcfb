// Package jobfile reads the job files of commands and reports their errors with their places
// in the file.
//
// The schema of a driver comes from an agent, or from the driver itself, which package
// localplugins starts. Packages job and run use it.
package jobfile
