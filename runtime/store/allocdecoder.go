package store

import (
	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/nomad/api"
)

// allocationDecoder decodes records of allocations. The fields that have the same bytes in most allocations of a group are
// decoded once, and the decoded allocations share their values. The zero value is ready to use, by one goroutine.
type allocationDecoder struct {
	allocatedResources sharedFieldDecoder[*api.AllocatedResources]
	resources          sharedFieldDecoder[*api.Resources]
	taskResources      sharedFieldDecoder[map[string]*api.Resources]
	metrics            sharedFieldDecoder[*api.AllocationMetric]
}

// decodeKnownFields decodes a record into r, which must be zero. It fails if the record has a field that its type does not
// have: decodeAndListUnknownFields decodes such a record.
func (d *allocationDecoder) decodeKnownFields(payload []byte, r *allocationRecord) error {
	encoded := undecodedAllocationRecord{Alloc: &allocationWithUndecodedFields{Allocation: new(api.Allocation)}}
	if err := decodeMsgpackWith(&strictDecoders, payload, &encoded); err != nil {
		return err
	}
	decoded := allocationRecord{JobHash: encoded.JobHash, JobVersion: encoded.JobVersion, JobCreateIndex: encoded.JobCreateIndex}
	if e := encoded.Alloc; e != nil {
		decoded.Alloc = e.Allocation
		if err := d.allocatedResources.decode(e.AllocatedResources, &e.Allocation.AllocatedResources); err != nil {
			return err
		}
		if err := d.resources.decode(e.Resources, &e.Allocation.Resources); err != nil {
			return err
		}
		if err := d.taskResources.decode(e.TaskResources, &e.Allocation.TaskResources); err != nil {
			return err
		}
		if err := d.metrics.decode(e.Metrics, &e.Allocation.Metrics); err != nil {
			return err
		}
	}
	*r = decoded
	return nil
}

// undecodedAllocationRecord is an allocationRecord in which the fields that an allocationDecoder shares are still encoded.
type undecodedAllocationRecord struct {
	Alloc   *allocationWithUndecodedFields `store:"alloc"`
	JobHash string                         `store:"spec"`

	JobVersion     uint64 `store:"job_version"`
	JobCreateIndex uint64 `store:"job_create_index"`
}

type allocationWithUndecodedFields struct {
	*api.Allocation
	AllocatedResources codec.Raw
	Resources          codec.Raw
	TaskResources      codec.Raw
	Metrics            codec.Raw
}

// maxSharedFieldValues is the maximum number of values that a sharedFieldDecoder keeps.
const maxSharedFieldValues = 64

// sharedFieldDecoder decodes a field of allocations. It returns the same value for the same bytes.
type sharedFieldDecoder[T any] struct {
	valueByEncoding map[string]T
}

func (d *sharedFieldDecoder[T]) decode(encoded codec.Raw, into *T) error {
	if encoded == nil { // the record has no such field
		return nil
	}
	if known, ok := d.valueByEncoding[string(encoded)]; ok {
		*into = known
		return nil
	}
	if err := decodeMsgpackWith(&strictDecoders, encoded, into); err != nil {
		return err
	}
	if d.valueByEncoding == nil || len(d.valueByEncoding) == maxSharedFieldValues {
		d.valueByEncoding = make(map[string]T)
	}
	d.valueByEncoding[string(encoded)] = *into
	return nil
}
