package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// The kinds of nodes, which are directories of the bus, and types of devices.
const (
	thermo = "thermo"
	relay  = "relay"
)

// kinds describes the value of a node of each kind.
var kinds = map[string]struct{ valueUnit, valueDescription string }{
	thermo: {"°C", "temperature"},
	relay:  {"A", "switched current"},
}

// node is a sensor or an actuator: a directory with the files model, serial, state and value.
type node struct {
	kind, name    string
	dir           string
	model, serial string
	problem       string // why the node is broken; empty if it is not
}

// scan returns the nodes of the bus, and the directories that are none, with the reason. A node
// whose files are not complete yet is one of these.
func scan(dir string) (nodes []node, skipped map[string]string, err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, fmt.Errorf("the bus is gone: %w", err)
	}
	skipped = map[string]string{}
	for kind := range kinds {
		entries, err := os.ReadDir(filepath.Join(dir, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		for _, e := range entries {
			n := node{kind: kind, name: e.Name(), dir: filepath.Join(dir, kind, e.Name())}
			if !e.IsDir() || strings.ContainsAny(n.name, "#\n") || strings.HasPrefix(n.name, ".") {
				continue
			}
			if err := n.load(); err != nil {
				skipped[n.dir] = err.Error()
				continue
			}
			nodes = append(nodes, n)
		}
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].dir < nodes[j].dir })
	return nodes, skipped, nil
}

// load reads the files of the node, apart from its value.
func (n *node) load() error {
	var err error
	if n.model, err = n.readFile("model"); err != nil {
		return err
	}
	if err := checkName(n.model); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if n.serial, err = n.readFile("serial"); err != nil {
		return err
	}
	switch state, err := n.readFile("state"); {
	case err != nil:
		n.problem = err.Error()
	case state != "ok":
		n.problem = fmt.Sprintf("serial %s: state is %q", n.serial, state)
	}
	return nil
}

// readValue returns the measured value.
func (n *node) readValue() (float64, error) {
	text, err := n.readFile("value")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

func (n *node) readFile(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(n.dir, name))
	return strings.TrimSpace(string(b)), err
}
