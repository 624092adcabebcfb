// Package racedetector reports whether the program is built with the race detector.
//
// It imports no other package. Every package of the module can use it.
package racedetector
