// Package groupexec runs short-lived programs in process groups of their own. The agent runs CNI plugins and volume plugins
// with it. The processes of tasks are the concern of their drivers.
package groupexec
