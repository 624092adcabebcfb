// Package script is a builtin hook: at the hook points of an allocation or a
// task it runs a command on the host or in the task, or makes an HTTP request,
// as the job or the operator has configured it. Its output becomes an event.
//
// The hook stores nothing and runs only configured actions. Commands on the host
// run as the user of the agent, so the operator must have allowed them.
// `nomad-lite plugin serve script` serves the hook.
package script
