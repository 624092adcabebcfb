// Package attack contains the attacks that a task of a hostile job tries on the machine and on other tasks.
//
// The attacks are a fixed list. They report what they could access to an output, and change nothing outside of the task
// if they fail. Package attack does not know what a task may access: the test that has started the task decides.
//
// The program attack/probe runs the attacks. The tests of package hostile start it in tasks. The package imports no
// package of this module.
package attack
