package main

import (
	"os"
	_ "time/tzdata" // the time zones of periodic jobs, for machines without zone files
)

func main() {
	os.Exit(execute(os.Args[1:], &streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
