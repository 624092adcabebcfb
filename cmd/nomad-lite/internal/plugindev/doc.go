// Package plugindev has the steps of plugin development: it builds a plugin's program, checks that the program starts,
// puts the program into a plugin directory, and starts it under a debugger. It runs no agent with tasks.
package plugindev
