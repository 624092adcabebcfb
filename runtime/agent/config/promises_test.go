package config

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/promises"
)

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

// labelledBlocks are the blocks that are no table of settings: a user names each of them. The parser lists their settings in its message for an
// unknown one.
var labelledBlocks = map[string]string{
	"audit.filter":        `audit { filter "x" { %s } }`,
	"audit.sink":          `audit { sink "x" { %s } }`,
	"client.host_network": `client { host_network "x" { %s } }`,
	"client.host_volume":  `client { host_volume "x" { %s } }`,
	"hook":                `hook "x" { %s }`,
	"hook.match":          `hook "x" { match { %s } }`,
	"plugin":              `plugin "x" { %s }`,
}

// allPromiseLines returns the lines of the tables, and those of labelledBlocks.
func allPromiseLines(t *testing.T, settings map[string]settingSpec) []string {
	t.Helper()
	lines := promiseLines("", settings)
	listed := regexp.MustCompile(` (?:has|have) ([a-z0-9_, ]+) and ([a-z0-9_]+)`)
	for path, text := range labelledBlocks {
		found := listed.FindStringSubmatch(parseProbe(text, "unknown_setting"))
		if found == nil {
			t.Fatalf("the message for an unknown setting of %s lists no settings: %s", path, parseProbe(text, "unknown_setting"))
		}
		for _, name := range append(strings.Split(found[1], ", "), found[2]) {
			if message := parseProbe(text, name); listed.MatchString(message) {
				t.Errorf("the parser lists the setting %s of %s, and rejects it: %s", name, path, message)
				continue
			}
			lines = append(lines, path+" block, "+name)
		}
	}
	return lines
}

// parseProbe returns the messages for a block with one setting.
func parseProbe(text, name string) string {
	var c Config
	return c.Parse("a.hcl", fmt.Appendf(nil, text, name+` = "1"`)).Error()
}

func TestReferenceConfigPromises(t *testing.T) {
	promises.Check(t, promisesFile, allPromiseLines(t, topLevelSettings))
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
		promises.CheckOnly(t, promisesFile, allPromiseLines(t, top), promise)
	}
	client, top := maps.Clone(clientSettings), maps.Clone(topLevelSettings)
	client["state_dir"] = client["node_class"] // an ignored setting gets an effect, and a new setting is added
	client["invented"] = client["node_class"]
	top["client"] = settingSpec{blockSettings: client}
	promises.CheckKept(t, promisesFile, allPromiseLines(t, top))
}
