// Package systemtest helps to test nomad-lite as a whole: agents, plugins, tasks and the command line, in processes of
// their own. The tests are in the packages below it, by subject, such as commands, faults, hostile, pages, vm and
// bench.
//
// A test binary of such a package is also the program under test: executed as nomad-lite it runs package root, and
// executed under another name it is a driver with faults, a hook that exits, or another helper of a test (package
// programs). A test must leave no process, mount, cgroup or file behind. RunTestsOrProgram checks for the last three,
// and the script command "alone" for processes.
package systemtest
