package store

import (
	"fmt"

	"github.com/hashicorp/nomad/api"
)

// allocCopyBucket is the bucket name in an allocation copy's checksum.
const allocCopyBucket = "alloc_copy"

// EncodeAllocationCopy returns an allocation with its job as the bytes of a file outside the state. [DecodeAllocationCopy]
// reads it. The bytes have a checksum, and are not encrypted. It may be called concurrently.
func EncodeAllocationCopy(alloc *api.Allocation) ([]byte, error) {
	payload, err := encodeMsgpack(alloc)
	if err != nil {
		return nil, fmt.Errorf("encode allocation %s: %w", alloc.ID, err)
	}
	return encodeRecord(allocCopyBucket, alloc.ID, alloc.AllocModifyIndex, payload), nil
}

// AllocationCopyIndex returns the AllocModifyIndex of the allocation that [EncodeAllocationCopy] has encoded; 0 if an earlier build
// has, which stored no index, or if the bytes are damaged or belong to an allocation with another ID.
func AllocationCopyIndex(allocID string, b []byte) uint64 {
	record, err := decodeRecord(allocCopyBucket, allocID, b)
	if err != nil {
		return 0
	}
	return record.changeIndex
}

// DecodeAllocationCopy returns the allocation that [EncodeAllocationCopy] has encoded in this or another build. Fields unknown
// to this build are dropped. It returns an error if the bytes are damaged, or if they belong to an allocation with another ID.
func DecodeAllocationCopy(allocID string, b []byte) (*api.Allocation, error) {
	record, err := decodeRecord(allocCopyBucket, allocID, b)
	if err != nil {
		return nil, fmt.Errorf("decode copy of allocation %s: %w", allocID, err)
	}
	alloc := new(api.Allocation)
	if err := decodeMsgpackWith(&decoders, record.payload, alloc); err != nil {
		return nil, fmt.Errorf("decode copy of allocation %s: %w", allocID, err)
	}
	return alloc, nil
}
