// Package scaling has the commands below "nomad-lite scaling".
package scaling
