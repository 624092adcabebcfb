package clustertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// stockTarget is a stock server with the API of its operator.
type stockTarget struct {
	t *testing.T
	*stockServer
}

func (s stockTarget) Addr() string { return s.rpcAddr }

func (s stockTarget) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("API of the stock server: %v", err)
	}
}

func (s stockTarget) eventually(f func() error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	retry(ctx, s.t, f)
}

func (s stockTarget) run(job *api.Job, nodeID string) (allocID string) {
	_, _, err := s.http.Jobs().Register(job, nil)
	s.check(err)
	s.eventually(func() error {
		allocs, _, err := s.http.Nodes().Allocations(nodeID, nil)
		for _, a := range allocs {
			if a.JobID == *job.ID {
				allocID = a.ID
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("no allocation of job %s on the node", *job.ID))
	})
	return allocID
}

func (s stockTarget) update(job *api.Job) {
	response, _, err := s.http.Jobs().Register(job, nil)
	s.check(err)
	s.waitEvaluation(response.EvalID)
}

func (s stockTarget) waitEvaluation(id string) {
	s.t.Helper()
	s.eventually(func() error {
		evaluation, _, err := s.http.Evaluations().Info(id, nil)
		if err == nil && evaluation.Status != "complete" {
			err = fmt.Errorf("evaluation is %s", evaluation.Status)
		}
		return err
	})
}

func (s stockTarget) stop(job *api.Job) {
	id, _, err := s.http.Jobs().Deregister(*job.ID, false, nil)
	s.check(err)
	s.waitEvaluation(id)
}

func (s stockTarget) purgeNode(id string) {
	_, _, err := s.http.Nodes().Purge(id, nil)
	s.check(err)
}

func (s stockTarget) missHeartbeat(id string) {
	s.eventually(func() error {
		node, _, err := s.http.Nodes().Info(id, nil)
		if err == nil && (node.Status == statusReady || node.Status == statusInitializing) {
			err = errors.New("the node is " + node.Status)
		}
		if err != nil {
			return err
		}
		// The scheduler changes the allocations after the status.
		allocs, _, err := s.http.Nodes().Allocations(id, nil)
		for _, a := range allocs {
			if a.ClientStatus == "running" {
				err = errors.New("allocation is running")
			}
		}
		return err
	})
}

func (s stockTarget) settle() {
	s.eventually(func() error {
		evaluations, _, err := s.http.Evaluations().List(nil)
		for _, e := range evaluations {
			if e.Status == "pending" && e.WaitUntil.IsZero() {
				err = errors.New("evaluation is pending")
			}
		}
		return err
	})
}

func (s stockTarget) waitForDrain(id string) {
	s.eventually(func() error {
		node, _, err := s.http.Nodes().Info(id, nil)
		if err == nil && node.DrainStrategy != nil {
			err = errors.New("the node is draining")
		}
		return err
	})
}

func (s stockTarget) putVariable(path string, items map[string]string) {
	_, _, err := s.http.Variables().Create(&api.Variable{Path: path, Items: items}, nil)
	s.check(err)
}

func (s stockTarget) makeTokens() (secret, roleID string) {
	_, err := s.http.ACLPolicies().Upsert(&api.ACLPolicy{Name: "readers", Description: "may read", Rules: readerRules}, nil)
	s.check(err)
	_, err = s.http.ACLPolicies().Upsert(&api.ACLPolicy{Name: "of-job", Rules: jobRules, JobACL: &api.JobACL{Namespace: "default", JobID: "web"}}, nil)
	s.check(err)
	role, _, err := s.http.ACLRoles().Create(&api.ACLRole{Name: "reading", Policies: []*api.ACLRolePolicyLink{{Name: "readers"}}}, nil)
	s.check(err)
	token, _, err := s.http.ACLTokens().Create(&api.ACLToken{Name: "user", Type: "client", Policies: []string{"readers"}, Roles: []*api.ACLTokenRoleLink{{ID: role.ID}}}, nil)
	s.check(err)
	return token.SecretID, role.ID
}

func (s stockTarget) managementToken() string { return s.management }
