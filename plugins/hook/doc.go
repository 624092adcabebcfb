// Package hook is the contract of a lifecycle hook: what may run beside an
// allocation or a task, and at which moments.
//
// A hook implements [Hook] and one interface per moment that it takes part in;
// the runners find them by type assertion. Requests and responses are plain
// data, so that a hook in this process and one in a plugin look the same to a
// runner. Deadlines, order and what an error does are the runner's business;
// they are written at each interface.
package hook
