package main

import (
	"os"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/root"
)

func main() {
	os.Exit(root.Execute(os.Args[1:], &cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
