package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: lines [directory]") }
	flag.Parse()
	if err := run(flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	var root string
	switch len(args) {
	case 0:
		out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
		if err != nil {
			return fmt.Errorf("find the root of the work tree: %w", err)
		}
		root = strings.TrimSpace(string(out))
	case 1:
		root = args[0]
	default:
		return errors.New("only one directory can be counted")
	}
	rows, err := countTree(root)
	if err != nil {
		return err
	}
	return printTable(stdout, rows)
}

func printTable(w io.Writer, rows []row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "product\tgenerated\ttest\tfolder\t")
	var total count
	for _, r := range rows {
		fmt.Fprintf(table, "%d\t%d\t%d\t%s\t\n", r.product, r.generated, r.test, r.folder)
		total.product += r.product
		total.generated += r.generated
		total.test += r.test
	}
	fmt.Fprintf(table, "%d\t%d\t%d\ttotal\t\n", total.product, total.generated, total.test)
	return table.Flush()
}
