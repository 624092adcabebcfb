package run

import (
	"fmt"
	"maps"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// environmentFlags set environment variables of all tasks, and Nomad variables that templates read.
type environmentFlags struct {
	envFiles     []string
	nomadVarArgs []string
}

func (f *environmentFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.envFiles, "env-file", nil, "environment variables of all tasks, from the lines NAME=VALUE of a `file`; may be repeated")
	cmd.Flags().StringArrayVar(&f.nomadVarArgs, "nomad-var", nil, "an item of a variable for templates, as `PATH KEY=VALUE`; may be repeated")
	_ = cmd.Flags().SetAnnotation("nomad-var", cli.TwoWordsAnnotation, nil) // SetAnnotation fails only for an unknown flag
}

// addEnvFilesToTasks adds the environment variables of the files to the env blocks of all tasks of a job. They replace
// variables with the same names.
func (f *environmentFlags) addEnvFilesToTasks(job *api.Job) error {
	env := make(map[string]string)
	for _, path := range f.envFiles {
		if err := readEnvFileInto(path, env); err != nil {
			return fmt.Errorf("-env-file: %w", err)
		}
	}
	apiclient.ForEachTask(job, func(_ *api.TaskGroup, task *api.Task) {
		if task.Env == nil {
			task.Env = make(map[string]string, len(env))
		}
		maps.Copy(task.Env, env)
	})
	return nil
}

// readEnvFileInto adds the variables of a file to env. A line is NAME=VALUE, with or without quotes around the value,
// or NAME for a variable that has its value from this process's environment. Empty lines and lines that start with #
// have no effect.
func readEnvFileInto(path string, env map[string]string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, err := parseOrInheritEnvLine(strings.TrimPrefix(line, "export "))
		if err != nil {
			return fmt.Errorf("%s:%d: %w", path, number, err)
		}
		env[name] = value
	}
	return nil
}

func parseOrInheritEnvLine(line string) (name, value string, err error) {
	name, value, hasValue := strings.Cut(line, "=")
	switch {
	case name == "" || strings.ContainsAny(name, " \t'\""):
		return "", "", fmt.Errorf("%q is no name of a variable: write NAME=VALUE", name)
	case hasValue:
		value, err = unquoteEnvValue(value)
		return name, value, err
	}
	value, found := os.LookupEnv(name)
	if !found {
		return "", "", fmt.Errorf("%s has no value, and is not set in the environment: write %s=VALUE", name, name)
	}
	return name, value, nil
}

// unquoteEnvValue removes the quotes around a value. It interprets no escape sequences. Errors do not
// contain the value, which can be a secret.
func unquoteEnvValue(value string) (string, error) {
	value = strings.TrimSpace(value)
	if value == "" || value[0] != '"' && value[0] != '\'' {
		return value, nil
	}
	if len(value) < 2 || value[len(value)-1] != value[0] {
		return "", fmt.Errorf("the value starts with %c, and does not end with it", value[0])
	}
	return value[1 : len(value)-1], nil
}

// parseNomadVars returns the Nomad variables that the flag -nomad-var sets.
func (f *environmentFlags) parseNomadVars() ([]*api.Variable, error) {
	var all []*api.Variable
	byPath := make(map[string]*api.Variable)
	for _, text := range f.nomadVarArgs {
		path, item, _ := strings.Cut(text, " ")
		key, value, found := strings.Cut(item, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("-nomad-var %s: want PATH KEY=VALUE", path)
		}
		if err := model.ValidateVariablePath(path); err != nil {
			return nil, fmt.Errorf("-nomad-var %s: %w", path, err)
		}
		v := byPath[path]
		if v == nil {
			v = &api.Variable{Path: path, Items: api.VariableItems{}}
			byPath[path], all = v, append(all, v)
		}
		v.Items[key] = value
	}
	for _, v := range all {
		if err := model.CheckVariableSize(v.Items); err != nil {
			return nil, fmt.Errorf("-nomad-var %s: %w", v.Path, err)
		}
	}
	return all, nil
}
