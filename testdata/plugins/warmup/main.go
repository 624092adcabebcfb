// Command warmup is a hook for nomad-lite: it warms a task up before the task counts as healthy.
package main

import "github.com/nomad-lite/nomad-lite/sdk"

func main() { sdk.ServeHook(newWarmup()) }
