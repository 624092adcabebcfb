package main

import (
	"slices"
	"strings"
	"testing"
)

func TestMutate(t *testing.T) {
	const source = `package a

const limit = 7

func f(a, b int) bool {
	x := true
	if a < b && x {
		a, b = b, 2
		g()
		return false
	}
	switch {
	case a == 1:
		a++
	}
	return a > 0
}

var table = map[int]map[string]step{
	1: {"done": last, "failed": first},
	2: {"done": last, "text": "x"},
}
`
	mutants, err := mutate("a.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.what)
		if string(m.source) == source {
			t.Errorf("%s changes nothing", m.what)
		}
	}
	for _, want := range []string{
		"negate a < b && x", "write || for && in a < b && x", "write <= for < in a < b", "delete g()", "delete a++", "write != for == in a == 1",
		"do not assign b in a, b = b, 2", "delete a, b = b, 2", "write 3 for 2 in a, b = b, 2", "write 1 for 0 in a > 0", "write false for true in x := true",
		`write "done": first for "done": last`, `delete "failed": first of {"done": last}`, `delete "done": last of {"text": "x"}`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no mutant %q in %q", want, got)
		}
	}
	if text := strings.Join(got, "\n"); strings.Contains(text, "8 for 7") || strings.Contains(text, "delete x :=") || strings.Contains(text, "delete return a") {
		t.Errorf("mutants of a constant, of a definition or of the last return: %q", got)
	}
}
