// Command clock is a task driver for Nomad and nomad-lite whose tasks print the time.
//
// The program has two modes. Without arguments it is the plugin. With the argument
// "tick" it is the process of a task: see ticker.go.
package main

import (
	"os"

	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() {
	if isTicker() {
		os.Exit(runTicker(os.Args[2:]))
	}
	sdk.ServeDriver(newClock())
}
