// Package agentplugins has an agent's plugins: it connects their supervisor with the state, the hooks and the devices, and checks
// jobs with them.
package agentplugins
