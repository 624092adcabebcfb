//go:build !race

package racedetector

// Slowdown is the factor by which the race detector lengthens the start of a program. It is 1 without the race detector.
const Slowdown = 1
