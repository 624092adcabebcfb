package compose

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nomad-lite/nomad-lite/runtime/job/importer"
)

// maxFileSize limits the size of each file that is read.
const maxFileSize = 1 << 20

// loader reads the files of a project.
type loader struct {
	options Options
	environ map[string]string
	// projectEnv has the variables of the environment files of the project.
	projectEnv map[string]string
	warnings   *importer.Warnings
	values     int
	unset      map[string]bool // variables without a value, of which a warning is there
	loading    []string        // files and services that are being included or extended
}

// lookupIn returns a function that returns the value of a variable: of the process, else of an environment file.
func (l *loader) lookupIn(env map[string]string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		if v, ok := l.environ[name]; ok {
			return v, true
		}
		v, ok := env[name]
		return v, ok
	}
}

// warnOfUnset warns of a variable that has no value, once for each name.
func (l *loader) warnOfUnset(at importer.Position, name, hint string) {
	if l.unset[name] {
		return
	}
	l.unset[name] = true
	l.warnings.Add(at, "the variable %s is not set, an empty text replaces it; %s", name, hint)
}

// warnOfUnsetIn returns a function that warns of a variable of an environment file that has no value.
func (l *loader) warnOfUnsetIn(path string) func(line int, name string) {
	return func(line int, name string) {
		l.warnOfUnset(importer.Position{File: l.displayName(path), Line: line}, name, "single quotes around the value keep a dollar sign")
	}
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(text) > maxFileSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFileSize)
	}
	return text, err
}

// readEnvFiles returns the variables of environment files. Later files take precedence.
func (l *loader) readEnvFiles(paths []string) (map[string]string, error) {
	env := map[string]string{}
	for _, path := range paths {
		text, err := readFile(path)
		if err != nil {
			return nil, err
		}
		_, values, err := parseEnvFile(string(text), l.lookupIn(env), l.warnOfUnsetIn(path))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for name, v := range values {
			env[name] = v
		}
	}
	return env, nil
}

// defaultEnvFile returns the file .env of a directory, if there is one.
func defaultEnvFile(dir string) []string {
	path := filepath.Join(dir, ".env")
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return []string{path}
}

// loadProject returns the merged content of the files of the options.
func (l *loader) loadProject() (*value, error) {
	dir := filepath.Dir(l.options.Files[0])
	envFiles := l.options.EnvFiles
	if len(envFiles) == 0 {
		envFiles = defaultEnvFile(dir)
	}
	env, err := l.readEnvFiles(envFiles)
	if err != nil {
		return nil, err
	}
	l.projectEnv = env
	if len(l.options.Profiles) == 0 {
		if names, ok := l.lookupIn(env)("COMPOSE_PROFILES"); ok {
			l.options.Profiles = strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	if name, ok := l.lookupIn(env)("COMPOSE_PROJECT_NAME"); ok {
		l.options.JobName = cmp.Or(l.options.JobName, name)
	}
	return l.loadFiles(l.options.Files, dir, env)
}

// loadFiles returns the merged content of files whose paths are relative to dir.
func (l *loader) loadFiles(files []string, dir string, env map[string]string) (*value, error) {
	var project *value
	for _, path := range files {
		if slices.Contains(l.loading, path) {
			return nil, fmt.Errorf("%s includes itself", path)
		}
		l.loading = append(l.loading, path)
		one, err := l.loadFile(path, dir, env)
		l.loading = l.loading[:len(l.loading)-1]
		if err != nil {
			return nil, err
		}
		if project == nil {
			project = one
			continue
		}
		project = merge(project, one, "")
	}
	return project, nil
}

// parseFile returns the content of a file, as it is written, with its variables replaced.
func (l *loader) parseFile(path string, env map[string]string) (*value, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	name := l.displayName(path)
	reader := &yamlReader{file: name, count: &l.values, visiting: map[*yaml.Node]bool{}}
	reader.replace = func(at importer.Position, text string) (string, error) {
		e := expander{
			lookup:  l.lookupIn(env),
			missing: func(name string) { l.warnOfUnset(at, name, "write $$ for a dollar sign") },
			kept: func(dollar string) {
				l.warnings.Add(at, "the dollar sign in %q starts no variable and stays, as in compose; $$ says so", dollar)
			},
		}
		replaced, err := e.expand(text)
		return replaced, errAt(at, err)
	}
	project := newMapping(importer.Position{File: name})
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return project, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(document.Content) == 0 {
			continue
		}
		content, err := reader.convert(document.Content[0], 0)
		if err != nil {
			return nil, err
		}
		if content.kind == null {
			continue
		}
		if content.kind != mapping {
			return nil, importer.Errorf(content.at, "the file must be a mapping with services")
		}
		project = merge(project, content, "")
	}
}

// displayName returns the path with which the user has named a file.
func (l *loader) displayName(path string) string {
	if dir, err := os.Getwd(); err == nil && filepath.IsAbs(path) {
		if relative, err := filepath.Rel(dir, path); err == nil && !strings.HasPrefix(relative, "..") {
			return relative
		}
	}
	return path
}

// loadFile returns the content of a file, with the services that it extends and the files that it includes, in long forms
// and with absolute paths.
func (l *loader) loadFile(path, dir string, env map[string]string) (*value, error) {
	project, err := l.parseFile(path, env)
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"services", "networks", "volumes", "secrets", "configs"} {
		if v := project.get(key); v != nil && v.kind != mapping {
			return nil, importer.Errorf(v.at, "%s must be a mapping", key)
		}
	}
	if services := project.get("services"); services != nil {
		for _, name := range slices.Clone(services.keys) {
			service, err := l.loadService(services, name, path, dir, env)
			if err != nil {
				return nil, err
			}
			services.fields[name] = service
		}
	}
	for _, key := range []string{"secrets", "configs"} {
		if all := project.get(key); all != nil {
			for _, name := range all.keys {
				if file := all.get(name).get("file"); file != nil {
					file.text = absolute(dir, file.text)
				}
			}
		}
	}
	return l.addIncludes(project, dir, env)
}

func absolute(dir, path string) string {
	if rest, isHome := strings.CutPrefix(path, "~/"); isHome {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	joined := filepath.Join(dir, path)
	if abs, err := filepath.Abs(joined); err == nil {
		return abs
	}
	return joined
}

// addIncludes adds the content of the files of the key include, which the project takes precedence over.
func (l *loader) addIncludes(project *value, dir string, env map[string]string) (*value, error) {
	include := project.get("include")
	if include == nil {
		return project, nil
	}
	project.remove("include")
	if include.kind != list {
		return nil, importer.Errorf(include.at, "include must be a list")
	}
	for _, item := range include.items {
		paths := item
		if item.kind == mapping {
			if paths = item.get("path"); paths == nil {
				return nil, importer.Errorf(item.at, "include has no path")
			}
		}
		files, err := paths.asTexts()
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, importer.Errorf(item.at, "include has no path")
		}
		for i := range files {
			files[i] = absolute(dir, files[i])
		}
		includedDir := filepath.Dir(files[0])
		if given := item.get("project_directory"); given != nil {
			includedDir = absolute(dir, given.text)
		}
		envFiles := defaultEnvFile(includedDir)
		if given := item.get("env_file"); given != nil {
			if envFiles, err = given.asTexts(); err != nil {
				return nil, err
			}
			for i := range envFiles {
				envFiles[i] = absolute(dir, envFiles[i])
			}
		}
		includedEnv, err := l.readEnvFiles(envFiles)
		if err != nil {
			return nil, errAt(item.at, err)
		}
		for name, v := range env {
			includedEnv[name] = v
		}
		included, err := l.loadFiles(files, includedDir, includedEnv)
		if err != nil {
			return nil, errAt(item.at, err)
		}
		included.remove("name")
		project = merge(included, project, "")
	}
	return project, nil
}

// loadService returns a service in long forms, merged with the service that it extends.
func (l *loader) loadService(services *value, name, path, dir string, env map[string]string) (*value, error) {
	service := services.fields[name]
	if service.kind == null {
		service = newMapping(service.at)
	}
	if service.kind != mapping {
		return nil, importer.Errorf(service.at, "the service %s must be a mapping", name)
	}
	id := path + "\x00" + name
	if slices.Contains(l.loading, id) {
		return nil, importer.Errorf(service.at, "the service %s extends itself", name)
	}
	l.loading = append(l.loading, id)
	defer func() { l.loading = l.loading[:len(l.loading)-1] }()

	extends := service.get("extends")
	service = service.clone()
	service.remove("extends")
	if err := toLongForms(service, dir); err != nil {
		return nil, err
	}
	if extends == nil {
		return service, nil
	}
	baseName, basePath, baseDir := extends.text, path, dir
	if extends.kind == mapping {
		if s := extends.get("service"); s != nil {
			baseName = s.text
		}
		if f := extends.get("file"); f != nil {
			basePath = absolute(dir, f.text)
			baseDir = filepath.Dir(basePath)
		}
	}
	baseServices := services
	if basePath != path {
		other, err := l.parseFile(basePath, env)
		if err != nil {
			return nil, errAt(extends.at, err)
		}
		if baseServices = other.get("services"); baseServices == nil || baseServices.kind != mapping {
			return nil, importer.Errorf(extends.at, "%s has no services", basePath)
		}
	}
	if baseServices.fields[baseName] == nil {
		return nil, importer.Errorf(extends.at, "the service %s extends %q, which does not exist", name, baseName)
	}
	if len(l.loading) > maxDepth {
		return nil, importer.Errorf(extends.at, "services extend each other too deeply")
	}
	base, err := l.loadService(baseServices, baseName, basePath, baseDir, env)
	if err != nil {
		return nil, err
	}
	return merge(base.clone(), service, "services/*"), nil
}

// replacedKeys are the keys of a service whose values a later file replaces.
var replacedKeys = []string{"services/*/command", "services/*/entrypoint", "services/*/healthcheck/test"}

// merge returns base with what over adds and replaces. It can change both.
func merge(base, over *value, path string) *value {
	switch {
	case base == nil || over.tag == overrideTag:
		return over
	case over.kind == null:
		return base
	case base.kind != over.kind || over.kind == scalar || slices.Contains(replacedKeys, path):
		return over
	case over.kind == list:
		return mergeLists(base, over)
	}
	for _, key := range over.keys {
		field := over.fields[key]
		if field.tag == resetTag {
			base.remove(key)
			continue
		}
		next := strings.TrimPrefix(path+"/"+key, "/")
		if path == "services" {
			next = "services/*"
		}
		base.set(key, merge(base.fields[key], field, next))
	}
	return base
}

// mergeLists appends the items of over. An item with the target of an earlier one, as of volumes, secrets and configs, replaces
// it, and an item that is there already is not added again.
func mergeLists(base, over *value) *value {
	merged := *base
	merged.items = slices.Clone(base.items)
	for _, item := range over.items {
		i := slices.IndexFunc(merged.items, func(other *value) bool { return itemKey(other) == itemKey(item) })
		if i >= 0 {
			merged.items[i] = item
			continue
		}
		merged.items = append(merged.items, item)
	}
	return &merged
}

// itemKey returns what distinguishes an item of a list from others.
func itemKey(v *value) string {
	switch {
	case v.kind == scalar:
		return v.text
	case v.get("published") != nil || v.get("protocol") != nil || v.get("host_ip") != nil:
		return fmt.Sprint("port", fieldText(v, "host_ip"), fieldText(v, "published"), fieldText(v, "target"), fieldText(v, "protocol"))
	case v.get("target") != nil:
		return "target " + v.get("target").text
	}
	return "source " + fieldText(v, "source") + fieldText(v, "path")
}

func fieldText(v *value, key string) string {
	if field := v.get(key); field != nil {
		return field.text
	}
	return ""
}

// siblingOverride returns the override file that docker compose reads with a file that is named without -f.
func siblingOverride(path string) string {
	base := filepath.Base(path)
	for _, stem := range []string{"compose", "docker-compose"} {
		for _, ext := range []string{".yaml", ".yml"} {
			if base != stem+ext {
				continue
			}
			for _, overrideExt := range []string{".yml", ".yaml"} {
				override := filepath.Join(filepath.Dir(path), stem+".override"+overrideExt)
				if _, err := os.Stat(override); !errors.Is(err, fs.ErrNotExist) {
					return override
				}
			}
		}
	}
	return ""
}
