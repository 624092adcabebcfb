// Package users assigns user ids to tasks that name no user.
//
// It owns which task has which id. The ids have no accounts. A task keeps its id across task and
// agent restarts: the hook that calls the package stores the id with the task, and the agent
// restores all ids before it runs a task.
package users
