// Package job has the commands below "nomad-lite job".
//
// Some of them are top-level commands as well, because package root calls their constructors twice.
package job
