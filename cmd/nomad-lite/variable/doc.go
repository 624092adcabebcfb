// Package variable has the commands below "nomad-lite var".
package variable
