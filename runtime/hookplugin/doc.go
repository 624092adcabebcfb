// Package hookplugin makes hooks in plugins what a runner knows as a hook.
//
// A [Set] knows the hook plugins of a node, and what the operator says about them; a
// [Hook] is one of them as one allocation or one task sees it, artifact and template of
// the box among them. attach.go says which there are for an allocation or a task,
// attachment.go with which configuration, rule.go what the operator says, pending.go
// who waits for plugins of which nobody knows yet, hookplugin.go and retryqueue.go how one
// is called, points.go with what, and cleanup.go what becomes of a call that must not be
// lost.
//
// It starts no process and keeps no state: the agent finds a plugin for it, and stores
// what is owed. What plugins ask for in return is answered by package hookhost.
package hookplugin
