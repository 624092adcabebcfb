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

// VariableReader returns a variable's items, nil if no such variable exists. An empty namespace means the workload's. It reads
// with the workload's rights, and may block until ctx ends. An error contains no items.
type VariableReader func(ctx context.Context, w identity.Workload, namespace, path string) (map[string]string, error)

// SecretsHook reads the values for a task's secret blocks before each start. The values are kept in memory only.
type SecretsHook struct {
	hooks.BuiltinHookDefaults
	task         *api.Task
	workload     identity.Workload
	readVariable VariableReader
	envBuilder   *taskenv.Builder
}

// NewSecretsHook returns the hook for a task with nomad as the only secret provider.
func NewSecretsHook(task *api.Task, w identity.Workload, readVariable VariableReader, envBuilder *taskenv.Builder) *SecretsHook {
	return &SecretsHook{task: task, workload: w, readVariable: readVariable, envBuilder: envBuilder}
}

// Name implements Hook.
func (*SecretsHook) Name() string { return "secrets" }

// NoDeadline implements Hook: a cluster node waits for the variable until it reaches a server.
func (*SecretsHook) NoDeadline() bool { return true }

// Prestart implements hook.TaskPrestart. A new variable value can repair a failure, so the restart policy decides what follows.
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

// checkAllSecretReferences returns an error for a reference to a missing value: a task would get the reference's text instead of
// the value.
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
