// Package volumes creates, registers and deletes dynamic host volumes, and calls the plugins that make them.
//
// It owns the volume records, and the directory in which the builtin plugin mkdir makes volumes. It does not decide which
// allocation uses a volume, and mounts nothing: package scheduler checks the jobs' requests, and a task hook passes the
// mounts to the driver. The HTTP API and the agent call it.
package volumes
