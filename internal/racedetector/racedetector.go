package racedetector

// Enabled reports whether the program is built with the race detector.
const Enabled = Slowdown > 1
