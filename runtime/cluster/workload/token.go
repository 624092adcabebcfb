package workload

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// taskToken is a task's default identity token. Only readTaskToken makes one, so no other token, such as the node's, can be in a
// call that needs it.
type taskToken struct{ jwt string }

// readTaskToken returns a task's token, or, if task is empty, that of the allocation's first task with one. It is an error if
// there is none, or if the token is not the allocation's: a Nomad 2.0 server with access control crashes when it gets a
// node's token for a variable.
func readTaskToken(r store.Reader, allocID, task string) (taskToken, error) {
	record, err := r.ClusterAlloc(allocID)
	if err != nil {
		return taskToken{}, fmt.Errorf("read the identities of allocation %s: %w", allocID, err)
	}
	tasks := []string{task}
	if a := r.Allocation(nil, allocID); task == "" && a != nil {
		for _, t := range a.GetTaskGroup().Tasks {
			tasks = append(tasks, t.Name)
		}
	}
	for _, name := range tasks {
		jwt := record.IdentityByTask[name]
		if jwt == "" {
			continue
		}
		if bearer, err := allocOfToken(jwt); err != nil {
			return taskToken{}, fmt.Errorf("default identity of task %q of allocation %s: %w", name, allocID, err)
		} else if bearer != allocID {
			return taskToken{}, fmt.Errorf("default identity of task %q of allocation %s: it is for the allocation %q", name, allocID, bearer)
		}
		return taskToken{jwt}, nil
	}
	if task == "" {
		return taskToken{}, fmt.Errorf("the servers have signed no default identity for a task of allocation %s", allocID)
	}
	return taskToken{}, fmt.Errorf("the servers have signed no default identity for task %q of allocation %s", task, allocID)
}

// allocOfToken returns the allocation in a token's claims, empty if the token is not a task's. It does not verify the token.
func allocOfToken(jwt string) (allocID string, err error) {
	text, err := protocol.EncodedClaims(jwt)
	switch {
	case errors.Is(err, protocol.ErrNoClaims):
		return "", err
	case err != nil:
		return "", fmt.Errorf("decode its claims: %w", err)
	}
	var claims struct {
		AllocID string `json:"nomad_allocation_id"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return "", fmt.Errorf("decode its claims: %w", err)
	}
	return claims.AllocID, nil
}

// tokenError is the error for a read that was not sent to the servers, because there is no token for it.
type tokenError struct{ error }

func (e tokenError) Unwrap() error { return e.error }

func isTokenError(err error) bool {
	var e tokenError
	return errors.As(err, &e)
}
