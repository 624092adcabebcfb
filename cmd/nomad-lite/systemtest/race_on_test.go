//go:build race

package systemtest

// raceDetector reports whether the tests, and the agents that they start, run under the
// race detector.
const raceDetector = true
