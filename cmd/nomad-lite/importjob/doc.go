// Package importjob has the command "nomad-lite import", which prints job files made from files of other programs.
package importjob
