package store

import (
	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/nomad/api"
)

// allocationDecoder decodes allocation records. Fields with the same bytes in most of a group's allocations are decoded once,
// and the decoded allocations share their values. The zero value is ready to use, by one goroutine.
type allocationDecoder struct {
	allocatedResources sharedFieldDecoder[*api.AllocatedResources]
	resources          sharedFieldDecoder[*api.Resources]
	taskResources      sharedFieldDecoder[map[string]*api.Resources]
	metrics            sharedFieldDecoder[*api.AllocationMetric]
}

// decodeKnownFields decodes a record into r, which must be zero. It fails if the record has a field that its type lacks:
// decodeAndListUnknownFields decodes such a record.
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

// undecodedAllocationRecord is an allocationRecord with the shared fields of an allocationDecoder still encoded.
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

// maxSharedFieldValues is how many values a sharedFieldDecoder keeps at most.
const maxSharedFieldValues = 64

// sharedFieldDecoder decodes one allocation field. It returns the same value for the same bytes.
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
