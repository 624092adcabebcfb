// Package pluginhooks adapts hooks in plugins to the runners' hook interfaces.
//
// A [HookPluginSet] holds a node's hook plugins and the operator's rules for them. A [Hook] is such a plugin, or the builtin
// artifact or template hook, attached to one allocation or one task. attach.go selects the hooks for an allocation or a task,
// attachment.go builds their configuration, rule.go holds the operator's rules, pending.go delays allocations until unknown
// plugins have been launched, pluginhooks.go has the contract with the runners, invoke.go and retryqueue.go make calls, points.go
// has the requests, and cleanup.go retries failed cleanup calls.
//
// The package starts no process and keeps no state: the agent finds a plugin for it, and stores pending cleanups. Package
// hostservice serves plugins' requests to the agent.
package pluginhooks
