// Package confined parses untrusted job files in a child process.
//
// The evaluation of HCL cannot be interrupted, and the cost of a text is known only after its
// evaluation. So it runs in a child process that has limits of memory and time, opens no files,
// and is killed when the request ends. A text that exceeds the limits is rejected, without an
// effect on the agent.
//
// The agent uses ChildProcessParser, the child calls ServeParseRequest. Both are the same binary.
package confined
