// Package taskreason finds the tasks that do not run although their job desires it, and states the reason and a remedy
// in one line. It reads only what Nomad's API shows, so it works with any agent.
package taskreason
