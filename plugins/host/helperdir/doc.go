// Package helperdir defines where the helper processes of a data directory, the keeper and the log collector, listen and which
// files they lock, and how another process finds out whether such a process runs.
//
// Agents, their helper processes and commands use it. It starts and connects to no process: that is left to the clients of the
// helper processes. The helper processes import it before most packages of the program are initialized: it imports neither net nor
// path/filepath.
package helperdir
