// Package agent has the commands that run an agent and show how it works: agent, agent-info and
// monitor.
//
// It reads the flags and the configuration, opens the listeners, creates the tokens, and connects
// runtime/agent with runtime/agent/httpapi until a signal ends the process. It makes no decision about
// jobs. Package root adds its commands to the command line.
package agent
