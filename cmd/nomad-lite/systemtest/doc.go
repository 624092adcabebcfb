// Package systemtest helps to test nomad-lite as a whole: agents, plugins, tasks and the command line, in processes of
// their own. The tests are in the packages below it, by theme: cli, faults, hostile, ui, vm and bench.
//
// A test binary of a theme is the program under test: under the name nomad-lite it executes package root, and under
// other names it is a hostile driver, a hook that exits, or another helper of a test (package programs). A test must
// leave no process, mount, cgroup or file behind. Main checks for the last three, and the script command "alone" for
// processes.
package systemtest
