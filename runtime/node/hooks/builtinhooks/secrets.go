package builtinhooks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/store/identity"
)

var _ hook.TaskPrestart = (*SecretsHook)(nil)

// VariableReader returns the items of a variable, nil if there is no such variable. An empty namespace means that of the
// workload. It reads with the rights of the workload, and may block until ctx ends. An error contains no items.
type VariableReader func(ctx context.Context, w identity.Workload, namespace, path string) (map[string]string, error)

// SecretsHook reads the values of a task's secret blocks before each start of the task. The values are kept
// in memory only.
type SecretsHook struct {
	hooks.BuiltinHookDefaults
	task         *api.Task
	workload     identity.Workload
	readVariable VariableReader
	envBuilder   *taskenv.Builder
}

// NewSecretsHook returns the hook for a task whose secret blocks all have the provider nomad.
func NewSecretsHook(task *api.Task, w identity.Workload, readVariable VariableReader, envBuilder *taskenv.Builder) *SecretsHook {
	return &SecretsHook{task: task, workload: w, readVariable: readVariable, envBuilder: envBuilder}
}

// Name implements Hook.
func (*SecretsHook) Name() string { return "secrets" }

// NoDeadline implements Hook: a node of a cluster waits for the variable until servers can be reached.
func (*SecretsHook) NoDeadline() bool { return true }

// Prestart implements hook.TaskPrestart. A failure can be repaired with a new value of the variable, so the restart
// policy decides about the next start.
func (se *SecretsHook) Prestart(ctx context.Context, _ hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	values := make(map[string]string)
	for _, s := range se.task.Secrets {
		items, err := se.readVariable(ctx, se.workload, "", s.Path)
		switch {
		case err != nil:
			return hook.TaskPrestartResponse{}, driver.Recoverable(fmt.Errorf("secret %q: %w", s.Name, err))
		case items == nil:
			return hook.TaskPrestartResponse{}, driver.Recoverable(fmt.Errorf(
				"secret %q: there is no variable %q in the namespace %q: create it with nomad-lite var put -namespace %s %s KEY=VALUE", s.Name, s.Path, se.workload.Namespace, se.workload.Namespace, s.Path))
		}
		for key, value := range items {
			values[taskenv.SecretPrefix+s.Name+"."+key] = value
		}
	}
	se.envBuilder.SetSecrets(values)
	return hook.TaskPrestartResponse{}, se.checkAllSecretReferences()
}

// checkAllSecretReferences returns an error for a reference to a value that does not exist: a task would get the text of the reference
// in place of the value.
func (se *SecretsHook) checkAllSecretReferences() error {
	env := se.envBuilder.Build()
	for _, name := range slices.Sorted(maps.Keys(se.task.Env)) {
		if missing := env.FirstMissingSecretReference(se.task.Env[name]); missing != "" {
			return missingSecretError("env "+name, missing)
		}
	}
	return checkSecretReferencesInConfig(env, "config", se.task.Config)
}

func checkSecretReferencesInConfig(env *taskenv.Env, configPath string, configValue any) error {
	switch value := configValue.(type) {
	case string:
		if missing := env.FirstMissingSecretReference(value); missing != "" {
			return missingSecretError(configPath, missing)
		}
	case []any:
		for i, element := range value {
			if err := checkSecretReferencesInConfig(env, configPath+"["+strconv.Itoa(i)+"]", element); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if err := checkSecretReferencesInConfig(env, configPath+"."+key, value[key]); err != nil {
				return err
			}
		}
	}
	return nil
}

func missingSecretError(configPath, reference string) error {
	return driver.Recoverable(fmt.Errorf(
		"%s: ${%s} has no value: the variable of the secret block has no such key, or the task has no such secret block. Add the key with nomad-lite var put, or correct the reference", configPath, reference))
}
