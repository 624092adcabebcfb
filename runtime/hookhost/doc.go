// Package hookhost serves hook plugins what they ask the agent for, on a socket
// that is the same for each agent of a data directory: [Host] is the agent's end
// of the service of plugins/hook.
//
// A hook shows a capability, which is good for one allocation or one task, and
// ends with it. Nothing is kept of capabilities but what they are used for just
// now: they are made of the names with a key that is in the state, so that those
// of an earlier agent are good too.
package hookhost
