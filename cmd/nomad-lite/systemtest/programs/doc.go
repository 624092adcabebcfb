// Package programs has the programs that a test binary runs when it is executed under their names: nomad-lite itself,
// agents that stop at a failpoint, drivers, hooks and device plugins that misbehave, and small tools for scripts.
package programs
