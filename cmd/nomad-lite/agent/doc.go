// Package agent has the commands that run and stop an agent and check its configuration.
//
// It reads the flags and the configuration, opens the listeners, creates the tokens, and connects
// runtime/agent with runtime/agent/httpapi until a signal ends the process. It makes no decision about
// jobs. Package root adds its commands to the command line.
package agent
