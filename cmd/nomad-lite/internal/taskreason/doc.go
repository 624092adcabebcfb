// Package taskreason finds the tasks that do not run although their job wants them to, and states
// in one line why not and what helps. It reads only what Nomad's API shows, so it works against any
// agent.
package taskreason
