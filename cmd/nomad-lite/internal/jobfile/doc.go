// Package jobfile reads the job files of commands and reports their errors with their positions in the file.
//
// It asks an agent about a job, and prints the answers of package admission. Package jobcheck adds what can be
// checked only on a machine that runs tasks.
package jobfile
