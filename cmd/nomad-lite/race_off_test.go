//go:build !race

package main

// raceDetector says that the tests, and the agents that they start, run under it.
const raceDetector = false
