// Package hook is the contract of a lifecycle hook: which code may run beside an
// allocation or a task, at which hook points, and what it can request from its host.
//
// A hook implements one interface per hook point at which it is called, such as [TaskPrestart]. The author of a
// plugin also implements sdk.Hook, which describes the hook. Package sdk finds the interfaces by type assertion.
// Requests and responses are plain data, so that a hook in this process and a hook in a
// plugin look the same to a runner. The runner implements deadlines, order and error
// handling; the comment of each interface describes them.
//
// The plugin calls its host through [Host]. The package links no gRPC: package hookwire has the
// clients and servers of both directions.
//
// A comment with the words "For hosts only." marks a declaration that authors of plugins do not need. A
// later version can change it: docs/reference/compatibility.md promises the other declarations.
package hook
