// Package commands tests the command line and the HTTP API: scripts, documents, realistic jobs, and jobs that are compared with Nomad.
package commands
