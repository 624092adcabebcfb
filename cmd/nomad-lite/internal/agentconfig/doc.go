// Package agentconfig turns configuration files into the configuration of runtime/agent.
//
// It prints the errors of the files, selects the builtin plugins that the configuration
// enables, and fills agent.Config. Package agent uses it for an agent, and package
// localplugins for a command that works without one.
package agentconfig
