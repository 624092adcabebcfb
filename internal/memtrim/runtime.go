package memtrim

import _ "unsafe" // for go:linkname

// The following functions of the runtime are those that runtime/debug calls. The package runtime/debug is initialized too late for
// the keeper and the log collector, which take their process over before most packages are initialized.

// freeOSMemory is debug.FreeOSMemory. It blocks for some milliseconds.
//
//go:linkname freeOSMemory runtime/debug.freeOSMemory
func freeOSMemory()

// setGCPercent is debug.SetGCPercent.
//
//go:linkname setGCPercent runtime/debug.setGCPercent
func setGCPercent(percent int32) (previous int32)

// readGCStats stores the pauses of recent garbage collections, and behind them gcStatsTotals numbers: the time of the last
// collection, the number of collections, and the sum of the pauses. The slice must have the capacity maxGCStats.
//
//go:linkname readGCStats runtime/debug.readGCStats
func readGCStats(stats *[]uint64)

const (
	gcStatsTotals = 3
	maxGCStats    = 2*256 + gcStatsTotals // runtime.MemStats has 256 pauses; each has a duration and an end
)
