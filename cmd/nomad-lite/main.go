package main

import (
	"os"
	_ "time/tzdata" // the time zones that periodic jobs name, for machines that have none
)

func main() {
	os.Exit(execute(os.Args[1:], &streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
