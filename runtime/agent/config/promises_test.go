package config

import (
	"flag"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/promises"
)

var update = flag.Bool("update", false, "add new settings to docs/promises/agent-config.txt")

const promisesFile = "agent-config.txt"

// promiseLines returns a line for each setting of a block. A setting without an effect is promised without a value: a file that has it
// remains valid, and the setting can get an effect.
func promiseLines(block string, settings map[string]settingSpec) []string {
	var lines []string
	for name, s := range settings {
		path := strings.TrimPrefix(block+"."+name, ".")
		switch {
		case s.ignoredReason != "":
			lines = append(lines, path)
		case s.blockSettings != nil:
			lines = append(append(lines, path+": block"), promiseLines(path, s.blockSettings)...)
		default:
			lines = append(lines, path+": "+typeText(s.valueType))
		}
	}
	return lines
}

func typeText(t reflect.Type) string {
	switch t {
	case nil:
		return "has an effect"
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[[]string]():
		return "list of strings"
	case reflect.TypeFor[map[string]string]():
		return "block of strings"
	case reflect.TypeFor[float64]():
		return "number"
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "whole number"
	case reflect.Map, reflect.Struct:
		return "block"
	}
	return t.Kind().String()
}

func TestSettingsKeepPromises(t *testing.T) {
	promises.Check(t, promisesFile, promiseLines("", topLevelSettings), *update)
}

func TestChangedSettingsBreakPromises(t *testing.T) {
	for promise, edit := range map[string]func(client map[string]settingSpec){
		"client.gc_max_allocs":    func(client map[string]settingSpec) { delete(client, "gc_max_allocs") },
		"client.node_class":       func(client map[string]settingSpec) { client["node_class"] = client["meta"] },
		"client.max_kill_timeout": func(client map[string]settingSpec) { client["max_kill_timeout"] = client["cgroup_parent"] }, // which is ignored
		"client.state_dir":        func(client map[string]settingSpec) { delete(client, "state_dir") },
	} {
		client, top := maps.Clone(clientSettings), maps.Clone(topLevelSettings)
		edit(client)
		top["client"] = settingSpec{blockSettings: client}
		promises.CheckOnly(t, promisesFile, promiseLines("", top), promise)
	}
	client, top := maps.Clone(clientSettings), maps.Clone(topLevelSettings)
	client["state_dir"] = client["node_class"] // an ignored setting gets an effect, and a new setting is added
	client["invented"] = client["node_class"]
	top["client"] = settingSpec{blockSettings: client}
	promises.Check(t, promisesFile, promiseLines("", top), false)
}
