// Package plugindev has the steps of the work on a plugin: build its program, check that it starts, put it
// where an agent finds it, start it under a debugger. It runs no agent with tasks.
package plugindev
