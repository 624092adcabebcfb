// Package memtrim reduces the memory of idle processes. The agent and each of its
// helper processes have one Trimmer, and report their work to it.
package memtrim
