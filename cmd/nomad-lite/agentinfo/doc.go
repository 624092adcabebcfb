// Package agentinfo has the commands agent-info and monitor, which ask a running agent about itself.
package agentinfo
