package jobspec

import (
	"reflect"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
)

// setJobIDAndName sets fields that follow from the label of the job.
func setJobIDAndName(job *api.Job, label string) {
	setDefault(&job.ID, label)
	setDefault(&job.Name, label)
}

// expandJobTasksVaultAndSecrets copies the blocks of a job that apply to its tasks to the tasks.
func expandJobTasksVaultAndSecrets(d *decoder, content *hcl.BodyContent, target any, path []string) hcl.Diagnostics {
	job := target.(*api.Job)
	alone, diags := d.decodeJobTasksIntoGroups(content.Blocks.OfType("task"))
	job.TaskGroups = append(alone, job.TaskGroups...)
	vault, secrets, moreDiags := d.decodeVaultAndSecrets(content, path)
	for _, group := range job.TaskGroups {
		d.copyVaultAndSecretsToTasks(group, vault, secrets, path)
	}
	return append(diags, moreDiags...)
}

// decodeJobTasksIntoGroups makes a group for each task block directly in the job.
func (d *decoder) decodeJobTasksIntoGroups(blocks hcl.Blocks) ([]*api.TaskGroup, hcl.Diagnostics) {
	var groups []*api.TaskGroup
	var diags hcl.Diagnostics
	for _, block := range blocks {
		name := block.Labels[0]
		task := &api.Task{Name: name}
		d.ranges.addRangeIfAbsent([]string{"group", name}, block.DefRange)
		d.ranges.addRangeIfAbsent([]string{"group", name, "task", name}, block.DefRange)
		diags = append(diags, d.decodeStruct(block.Body, reflect.ValueOf(task).Elem(), []string{"group", name, "task", name})...)
		groups = append(groups, &api.TaskGroup{Name: &name, Tasks: []*api.Task{task}})
	}
	return groups, diags
}

// copyGroupVaultAndSecrets copies the vault and secret blocks of a group to its tasks.
func copyGroupVaultAndSecrets(d *decoder, content *hcl.BodyContent, target any, path []string) hcl.Diagnostics {
	group := target.(*api.TaskGroup)
	vault, secrets, diags := d.decodeVaultAndSecrets(content, path)
	d.copyVaultAndSecretsToTasks(group, vault, secrets, path)
	return diags
}

// decodeVaultAndSecrets decodes the vault and secret blocks of a job or a group.
func (d *decoder) decodeVaultAndSecrets(content *hcl.BodyContent, path []string) (*api.Vault, []*api.Secret, hcl.Diagnostics) {
	var vault *api.Vault
	var secrets []*api.Secret
	diags := d.decodeBlocks(content.Blocks.OfType("vault"), reflect.ValueOf(&vault).Elem(), joinPath(path, "vault"))
	diags = append(diags, d.decodeBlocks(content.Blocks.OfType("secret"), reflect.ValueOf(&secrets).Elem(), joinPath(path, "secret"))...)
	return vault, secrets, diags
}

// copyVaultAndSecretsToTasks copies the vault and the secrets that were written at path to the tasks of a group.
// The secrets are appended to the secrets of each task. (If both a group and its task have secrets, Nomad duplicates the
// secrets of the task, and then rejects the job because of the duplicates.)
func (d *decoder) copyVaultAndSecretsToTasks(group *api.TaskGroup, vault *api.Vault, secrets []*api.Secret, path []string) {
	for _, task := range group.Tasks {
		at := []string{"group", *group.Name, "task", task.Name}
		if task.Vault == nil && vault != nil {
			shared := *vault
			task.Vault = &shared
			d.ranges.addPathAlias(joinPath(at, "vault"), joinPath(path, "vault"))
		}
		for _, secret := range secrets {
			task.Secrets = append(task.Secrets, secret)
			d.ranges.addPathAlias(joinPath(at, "secret", secret.Name), joinPath(path, "secret", secret.Name))
		}
	}
}

// defaultIdentity is the name of the identity that every task has.
const defaultIdentity = "default"

// decodeTaskScalingAndIdentity completes the scaling policies and identities of a task.
func decodeTaskScalingAndIdentity(d *decoder, content *hcl.BodyContent, target any, path []string) hcl.Diagnostics {
	task := target.(*api.Task)
	var diags hcl.Diagnostics
	task.ScalingPolicies, diags = d.decodeTaskScaling(content.Blocks.OfType("scaling"), path)
	for i, identity := range task.Identities {
		if identity.Name == "" || identity.Name == defaultIdentity {
			task.Identity = identity
			task.Identities = append(task.Identities[:i], task.Identities[i+1:]...)
			break
		}
	}
	return diags
}
