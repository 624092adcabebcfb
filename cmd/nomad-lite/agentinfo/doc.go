// Package agentinfo has the commands agent-info and monitor, which show the state and the log of a running agent.
package agentinfo
