// Package localplugins gives a command the plugins of this machine without an agent.
//
// It has the flags that name a plugin directory and a configuration, and starts the plugins
// in a temporary agent. Packages jobcheck, run, validate and plugin use it.
package localplugins
