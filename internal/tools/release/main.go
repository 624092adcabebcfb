package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.version, "version", "", "version of the release, such as 0.1.0 or 0.2.0-rc.1")
	flag.StringVar(&o.sourceDir, "source", "", "absolute `path` of the directory with the sources; the default is the work tree that contains the working directory")
	flag.StringVar(&o.outDir, "out", "", "absolute `path` of the directory for the files, which replace an earlier release there; the default is dist in the sources")
	flag.StringVar(&o.revision, "revision", "", "commit of sources without a repository, which also need SOURCE_DATE_EPOCH")
	targets := flag.String("targets", strings.Join(allTargets, ","), "systems to build for, one of which is this machine's")
	flag.Parse()
	o.targets = strings.Split(*targets, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, args []string, stdout io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: the version is the value of -version", args[0])
	}
	if err := o.complete(ctx); err != nil {
		return err
	}
	names, err := writeRelease(ctx, o)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Fprintln(stdout, name)
	}
	return nil
}
