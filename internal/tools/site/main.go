package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nomad-lite/nomad-lite/internal/tools/site/docpages"
	"github.com/nomad-lite/nomad-lite/internal/tools/worktree"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run() error {
	out := flag.String("out", "", "`folder` of the site; the default is dist/site in the work tree")
	version := flag.String("version", "", "`version` that the pages show")
	check := flag.Bool("check", false, "check the documents only")
	flag.Parse()
	root, err := worktree.Root(flag.Args())
	if err != nil {
		return err
	}
	if *check {
		problems, err := docpages.Check(root)
		for _, problem := range problems {
			fmt.Println(problem)
		}
		if err == nil && len(problems) > 0 {
			err = errors.New("the documents have problems")
		}
		return err
	}
	files, err := docpages.Build(root, *version)
	if err != nil {
		return err
	}
	dir := *out
	if dir == "" {
		dir = filepath.Join(root, "dist", "site")
	}
	if err := docpages.Write(dir, files); err != nil {
		return err
	}
	fmt.Println(filepath.Join(dir, "index.html"))
	return nil
}
