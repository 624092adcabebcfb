package config

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/schematest"
)

// compileSchema returns the function that validates a file by the JSON Schema.
func compileSchema(t *testing.T) func(file []byte) error {
	t.Helper()
	text, err := json.Marshal(JSONSchema())
	if err != nil {
		t.Fatal(err)
	}
	return schematest.Compile(t, text)
}

// probeValues are values of each kind and form, in JSON.
var probeValues = []string{
	`""`, `"a"`, `"a,b"`, `"info"`, `"true"`, `"T"`, `"0"`, `"1"`, `"12"`, `"1.5"`, `"90s"`, `"+1m"`, `"1h1m"`, `"10GB"`, `"fail"`, `"/srv"`, `"22,80"`,
	`"127.0.0.1"`, `"127.0.0.1:8125"`, `"10.0.0.0/8"`, `"fd00::/64"`, `"https://nomad.example.com"`, `"tls12"`, `"ipv6"`, `"grpc"`, `"d:r:/srv"`, `"90000-99999"`,
	`0`, `1`, `50`, `150`, `4646`, `5000000000`, `1.5`, `-1`, `true`, `false`, `null`, `[]`, `["a"]`, `["plugin", "executeTemplate", "writeToFile"]`, `[1, true]`, `["d:r:/srv"]`, `["env:production"]`, `["-nomad.client"]`,
	`{}`, `{"a": "b"}`, `{"a": 1}`, `[{"a": true}]`, `{"a": {}}`, `{"a": ["b"]}`, `{"min": "1s", "max": "2s"}`, `{"/bin": "/bin"}`,
}

// settingPaths returns the dotted names of all settings below a block that have an effect.
func settingPaths(block string, settings map[string]settingSpec) (paths []string) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		path := strings.TrimPrefix(block+"."+name, ".")
		switch s := settings[name]; {
		case s.blockSettings != nil:
			paths = append(append(paths, path), settingPaths(path, s.blockSettings)...)
		case s.ignoredReason == "":
			paths = append(paths, path)
		}
	}
	return paths
}

// nested returns a file in JSON with the value of one setting.
func nested(path, value string) []byte {
	for _, name := range slices.Backward(strings.Split(path, ".")) {
		value = `{"` + name + `": ` + value + `}`
	}
	return []byte(value)
}

// TestJSONSchemaAcceptsWhatParserAccepts gives each setting values of each kind.
func TestJSONSchemaAcceptsWhatParserAccepts(t *testing.T) {
	validate := compileSchema(t)
	paths := settingPaths("", topLevelSettings)
	paths = append(paths,
		"plugin.a.args", "plugin.a.config", "plugin.a.env_allowlist", "hook.a.order", "hook.a.timeout", "hook.a.on_error", "hook.a.config", "hook.a.match.job", "hook.a.match.meta",
		"client.host_volume.a.path", "client.host_network.a.cidr", "client.host_network.a.interface",
	)
	accepted, rejected := 0, 0
	for _, path := range paths {
		acceptedOfPath := 0
		for _, value := range probeValues {
			file := nested(path, value)
			var c Config
			diags := c.Parse("a.json", file)
			schemaErr := validate(file)
			if len(diags) == 0 && schemaErr != nil {
				t.Errorf("the parser accepts %s: %v", file, schemaErr)
			}
			if len(diags) == 0 {
				acceptedOfPath++
			}
			if diags.HasErrors() && schemaErr != nil {
				rejected++
			}
		}
		if acceptedOfPath == 0 {
			t.Errorf("no probe value suits %s: add one", path)
		}
		accepted += acceptedOfPath
	}
	if accepted < 1000 || rejected < 1000 {
		t.Errorf("the parser accepts %d values, and parser and schema reject %d: the test compares too little", accepted, rejected)
	}
}

func TestJSONSchemaRejectsUnknownNames(t *testing.T) {
	validate := compileSchema(t)
	blocks := []string{"", "plugin.a.", "hook.a.", "hook.a.match.", "client.host_network.a.", "client.host_volume.a."}
	for _, path := range settingPaths("", topLevelSettings) {
		if isBlockOfTables(path) {
			blocks = append(blocks, path+".")
		}
	}
	for _, block := range blocks {
		file := nested(block+"no_such_name", "1")
		var c Config
		if diags := c.Parse("a.json", file); len(diags) == 0 {
			t.Errorf("the parser accepts %s", file)
		}
		if validate(file) == nil {
			t.Errorf("the schema accepts %s", file)
		}
	}
}

// isBlockOfTables reports whether a dotted name is that of a block of the tables.
func isBlockOfTables(path string) bool {
	settings := topLevelSettings
	for name := range strings.SplitSeq(path, ".") {
		settings = settings[name].blockSettings
	}
	return settings != nil
}

func TestJSONSchemaHasEachIgnoredSetting(t *testing.T) {
	validate := compileSchema(t)
	for _, file := range []string{`{"consul": {"address": "127.0.0.1:8500"}}`, `{"server": {"bootstrap_expect": 3}}`, `{"$schema": "nomad-agent.schema.json", "name": "a"}`} {
		if err := validate([]byte(file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		var c Config
		if diags := c.Parse("a.json", []byte(file)); diags.HasErrors() || strings.Contains(file, "$schema") && len(diags) > 0 {
			t.Errorf("%s: %v", file, diags)
		}
	}
}

// TestJSONSchemaAcceptsFilesOfRepository converts configurations in HCL.
func TestJSONSchemaAcceptsFilesOfRepository(t *testing.T) {
	validate := compileSchema(t)
	var files []string
	for _, pattern := range []string{"testdata/plugins/*/agent.hcl", "cmd/nomad-lite/systemtest/testdata/*.hcl"} {
		found, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no file %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r := &configFileReader{config: &Config{}}
		top := make(map[string]any)
		for _, i := range r.parseHCLAndAddPlugins(file, text) {
			top[i.name] = i.toJSONValue()
		}
		if len(r.diags) > 0 || len(top)+len(r.plugins) == 0 {
			t.Errorf("%s: %v", file, r.diags)
		}
		converted, err := json.Marshal(top)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(converted); err != nil {
			t.Errorf("%s: %v\n%s", file, err, converted)
		}
	}
}
