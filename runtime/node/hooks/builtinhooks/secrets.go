package builtinhooks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
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
	emitEvent    func(*api.TaskEvent)
}

// NewSecretsHook returns the hook for a task with nomad as the only secret provider. emitEvent gets an event about a variable for which
// the hook waits.
func NewSecretsHook(task *api.Task, w identity.Workload, readVariable VariableReader, envBuilder *taskenv.Builder, emitEvent func(*api.TaskEvent)) *SecretsHook {
	return &SecretsHook{task: task, workload: w, readVariable: readVariable, envBuilder: envBuilder, emitEvent: emitEvent}
}

// Name implements Hook.
func (*SecretsHook) Name() string { return "secrets" }

// NoDeadline implements Hook: the task waits for a missing variable, and a cluster node until it reaches a server.
func (*SecretsHook) NoDeadline() bool { return true }

// Prestart implements hook.TaskPrestart. It waits for a variable that does not exist, as a template does. A new variable value can
// repair another failure, so the restart policy decides what follows.
func (se *SecretsHook) Prestart(ctx context.Context, _ hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	values := make(map[string]string)
	for _, s := range se.task.Secrets {
		items, err := se.readVariableWhenItExists(ctx, s.Path)
		if err != nil {
			return hook.TaskPrestartResponse{}, driver.Recoverable(fmt.Errorf("secret %q: %w", s.Name, err))
		}
		for key, value := range items {
			values[taskenv.SecretPrefix+s.Name+"."+key] = value
		}
	}
	se.envBuilder.SetSecrets(values)
	return hook.TaskPrestartResponse{}, se.checkAllSecretReferences()
}

// missingVariablePollInterval is how often the hook reads a variable that did not exist.
const missingVariablePollInterval = time.Second

func (se *SecretsHook) readVariableWhenItExists(ctx context.Context, path string) (items map[string]string, err error) {
	for waiting := false; ; waiting = true {
		if items, err = se.readVariable(ctx, se.workload, "", path); err != nil || items != nil {
			return items, err
		}
		if !waiting {
			se.emitEvent(model.EventHookMessage("Template", fmt.Sprintf("Missing: nomad.var.block(%s@%s)", path, se.workload.Namespace), nil)) // as for a template
		}
		if err := wait.Sleep(ctx, missingVariablePollInterval); err != nil {
			return nil, err
		}
	}
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
