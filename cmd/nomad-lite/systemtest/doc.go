// Package systemtest tests nomad-lite as a whole: agents, plugins, tasks and the command line, in
// processes of their own.
//
// The test binary is the program under test: under the name nomad-lite it executes package root,
// and under other names it is a hostile driver, a hook that exits, or another helper of a test. The
// scripts of the command line are in testdata/script, and job files as users write them in
// testdata/realistic. A test must leave no process, mount, cgroup
// or file behind; TestMain checks this.
package systemtest
