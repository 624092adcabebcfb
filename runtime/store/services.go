package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Store's methods in this file implement the interfaces through which package services in runtime/node stores registrations and
// check results.

// ServicesByAllocation returns an allocation's current registrations.
func (s *Store) ServicesByAllocation(allocID string) []*api.ServiceRegistration {
	return s.Snapshot().ServicesByAllocation(nil, allocID)
}

// PutAndRemoveServices stores the registrations in put and then removes those in remove, in one change. It returns
// when the change is on disk.
func (s *Store) PutAndRemoveServices(put, remove []*api.ServiceRegistration) error {
	_, err := s.Update(context.Background(), func(tx *Txn) error {
		for _, r := range put {
			tx.PutService(r)
		}
		for _, r := range remove {
			tx.DeleteService(r.Namespace, r.ID)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store services: %w", err)
	}
	return nil
}

// StoredResultByCheckID returns an allocation's results stored by PutCheckResult, by check id.
func (s *Store) StoredResultByCheckID(allocID string) (map[string]*api.AllocCheckStatus, error) {
	return s.Snapshot().CheckResults(allocID)
}

// PutCheckResult stores a check's last result.
func (s *Store) PutCheckResult(allocID string, result *api.AllocCheckStatus) error {
	_, err := s.Update(context.Background(), func(tx *Txn) error {
		tx.PutCheckResult(allocID, result)
		return nil
	})
	return err
}

// DeleteCheckResults removes the results for the checks with the given ids. It ignores missing results.
func (s *Store) DeleteCheckResults(allocID string, checkIDs []string) error {
	_, err := s.Update(context.Background(), func(tx *Txn) error {
		tx.DeleteCheckResults(allocID, checkIDs)
		return nil
	})
	return err
}

// ServicePasses reports whether a service instance passes its checks: each last result is a success, or it has no checks.
// Services with one name in one group or task share their checks.
func (r Reader) ServicePasses(instance *api.ServiceRegistration) bool {
	results, err := r.CheckResults(instance.AllocID)
	if err != nil {
		return false
	}
	for _, c := range results {
		if c.Service == instance.ServiceName && c.Status != model.CheckSuccess && strings.HasPrefix(instance.ID, model.ServiceIDPrefix(instance.AllocID, c.Task)) {
			return false
		}
	}
	return true
}

// renewServiceIndexes gives the registrations of an allocation's service a new index, so that blocking queries return.
func (tx *Txn) renewServiceIndexes(allocID, serviceName string) {
	for _, r := range tx.ServicesByAllocation(nil, allocID) {
		if r.ServiceName == serviceName {
			renewed := *r
			tx.PutService(&renewed)
		}
	}
}

// DeleteCheckResults removes the results for the checks with the given ids. It ignores missing results. Like PutCheckResult it
// increases the index only if a registered service passes its checks because of the change.
func (tx *Txn) DeleteCheckResults(allocID string, checkIDs []string) {
	have, err := tx.CheckResults(allocID)
	if err != nil {
		tx.setFirstError(err)
		return
	}
	some := false
	for _, id := range checkIDs {
		_, ok := have[id]
		some = some || ok
	}
	if !some {
		return
	}
	tx.editAllocLocalRecord(allocID, func(s *allocLocalRecord) {
		for _, id := range checkIDs {
			if c := s.CheckResultByID[id]; c != nil && c.Status != model.CheckSuccess {
				tx.renewServiceIndexes(allocID, c.Service)
			}
			delete(s.CheckResultByID, id)
		}
	})
}
