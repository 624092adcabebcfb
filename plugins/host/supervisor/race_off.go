//go:build !race

package supervisor

// raceFactor is how many times as long the start of a plugin takes under the race detector.
const raceFactor = 1
