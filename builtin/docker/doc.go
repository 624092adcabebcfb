// Package docker is the driver docker: it runs a task as a container of the Docker engine
// of the machine.
//
// The package turns the config block of a task and the policy of the operator into a
// container, and keeps the task's output, exit status and image in step with the engine. The
// engine owns the containers: they outlive the plugin process, which recovers them by their
// ids. The host serves the driver as a plugin process of its own, by the hidden command
// `nomad-lite plugin serve docker`.
package docker
