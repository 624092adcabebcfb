//go:build race

package systemtest

// RaceDetector reports whether the tests, and the agents that they start, run under the
// race detector.
const RaceDetector = true
