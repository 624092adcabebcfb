package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"

	"github.com/hashicorp/nomad/api"
)

// jobBucket is the table of the jobs of allocations. It has each job once, by the hash of its bytes: a
// hundred allocations of one job share one record and one object.
const jobBucket = "specs"

// jobTable holds the jobs of all allocations. Only the writer uses it.
type jobTable struct {
	byHash map[string]*jobEntry
	byJob  map[*api.Job]string
}

type jobEntry struct {
	job           *api.Job
	refCount      int                      // number of allocations of the job
	valuesByGroup map[string]*sharedValues // keyed by group
}

// sharedValues are values that are usually equal in all allocations of a group, unless the group has ports.
type sharedValues struct {
	granted   *api.AllocatedResources
	resources *api.Resources
	tasks     map[string]*api.Resources
	metrics   *api.AllocationMetric
}

// shareValues makes a new allocation, which no reader has yet, share the job, and those values that equal the
// ones of the last allocation of its group.
func (e *jobEntry) shareValues(a *api.Allocation) {
	a.Job = e.job
	c := e.valuesByGroup[a.TaskGroup]
	if c == nil {
		if e.valuesByGroup == nil {
			e.valuesByGroup = make(map[string]*sharedValues)
		}
		c = new(sharedValues)
		e.valuesByGroup[a.TaskGroup] = c
	}
	shareIfEqual(&a.AllocatedResources, &c.granted)
	shareIfEqual(&a.Resources, &c.resources)
	shareIfEqual(&a.TaskResources, &c.tasks)
	shareIfEqual(&a.Metrics, &c.metrics)
}

func shareIfEqual[T any](mine, last *T) {
	if reflect.DeepEqual(*mine, *last) {
		*mine = *last
	} else {
		*last = *mine
	}
}

func newJobTable() *jobTable {
	return &jobTable{byHash: make(map[string]*jobEntry), byJob: make(map[*api.Job]string)}
}

// interner deduplicates equal strings and equal maps of event details in the allocations that are loaded from
// a file.
type interner struct {
	strings      map[string]string
	eventDetails []map[string]string // different maps of event details, which most events share
}

// maxInternedDetails is the maximum number of maps in eventDetails.
const maxInternedDetails = 32

// internAllocation deduplicates the values of an allocation that no reader has yet.
func (i *interner) internAllocation(a *api.Allocation) {
	for _, s := range []*string{
		&a.Namespace, &a.EvalID, &a.NodeID, &a.NodeName, &a.JobID, &a.TaskGroup, &a.DesiredStatus, &a.DesiredDescription,
		&a.ClientStatus, &a.ClientDescription, &a.DeploymentID,
	} {
		i.internString(s)
	}
	for _, task := range a.TaskStates {
		i.internString(&task.State)
		for _, e := range task.Events {
			i.internString(&e.Type)
			i.internString(&e.DisplayMessage)
			i.internString(&e.Message)
			i.internDetails(&e.Details)
		}
	}
}

func (i *interner) internString(s *string) {
	if known, ok := i.strings[*s]; ok {
		*s = known
	} else {
		i.strings[*s] = *s
	}
}

func (i *interner) internDetails(mine *map[string]string) {
	if *mine == nil {
		return
	}
	for _, known := range i.eventDetails {
		if maps.Equal(known, *mine) {
			*mine = known
			return
		}
	}
	if len(i.eventDetails) < maxInternedDetails {
		i.eventDetails = append(i.eventDetails, *mine)
	}
}

// allocationRecord is the stored form of an allocation.
type allocationRecord struct {
	Alloc *api.Allocation `store:"alloc"` // Alloc has no job
	Spec  string          `store:"spec"`  // hash of the job, which is the key of the job's record; empty if there is none

	// The version of the job that is used if the record of the job cannot be read.
	JobVersion     uint64 `store:"job_version"`
	JobCreateIndex uint64 `store:"job_create_index"`
}

// jobBatch collects changes of the jobTable that a batch of requests makes. They take effect in apply.
type jobBatch struct {
	table        *jobTable
	hashes       map[*api.Job]string // hashes of jobs that are not in jobTable.byJob
	addedEntries map[string]*jobEntry
	encodedJobs  map[string][]byte
	refDeltas    map[string]int
}

func (t *jobTable) newBatch() *jobBatch {
	return &jobBatch{
		table:        t,
		hashes:       make(map[*api.Job]string),
		addedEntries: make(map[string]*jobEntry),
		encodedJobs:  make(map[string][]byte),
		refDeltas:    make(map[string]int),
	}
}

// encodeAndShare encodes an allocation, and makes it share its job with other allocations.
func (b *jobBatch) encodeAndShare(a *api.Allocation) ([]byte, error) {
	if a.Job == nil {
		return encodeAllocation(a, "")
	}
	hash, err := b.jobHash(a.Job)
	if err != nil {
		return nil, err
	}
	known := b.table.byHash[hash]
	if known == nil {
		known = b.addedEntries[hash]
	}
	if known == nil {
		known = &jobEntry{job: a.Job}
		b.addedEntries[hash] = known
	}
	known.shareValues(a)
	return encodeAllocation(a, hash)
}

func encodeAllocation(a *api.Allocation, hash string) ([]byte, error) {
	bare := *a
	bare.Job = nil
	row := allocationRecord{Alloc: &bare, Spec: hash}
	if a.Job != nil {
		row.JobVersion, row.JobCreateIndex = uint64OrZero(a.Job.Version), uint64OrZero(a.Job.CreateIndex)
	}
	return encode(row)
}

func (b *jobBatch) jobHash(job *api.Job) (string, error) {
	if hash, ok := b.table.byJob[job]; ok {
		return hash, nil
	}
	if hash, ok := b.hashes[job]; ok {
		return hash, nil
	}
	hash, payload, err := encodeJob(job)
	if err != nil {
		return "", err
	}
	b.hashes[job], b.encodedJobs[hash] = hash, payload
	return hash, nil
}

func encodeJob(job *api.Job) (hash string, payload []byte, err error) {
	if payload, err = encode(job); err != nil {
		return "", nil, fmt.Errorf("encode job %q: %w", stringOrEmpty(job.ID), err)
	}
	digest := sha256.Sum256(payload)
	return hex.EncodeToString(digest[:16]), payload, nil
}

// addRefs counts an allocation that is added (n is +1) or removed (n is -1) as a reference to its job.
func (b *jobBatch) addRefs(a *api.Allocation, n int) {
	if a.Job == nil {
		return
	}
	hash, ok := b.table.byJob[a.Job]
	if !ok {
		hash = b.hashes[a.Job]
	}
	b.refDeltas[hash] += n
}

// ops returns the write operations for jobs that are added and for jobs that no allocation uses any longer.
func (b *jobBatch) ops(index uint64) []bucketWrite {
	var ops []bucketWrite
	for hash, delta := range b.refDeltas {
		known := b.table.byHash[hash]
		switch {
		case known == nil && delta > 0:
			ops = append(ops, bucketWrite{jobBucket, hash, encodeRecord(jobBucket, hash, index, b.encodedJobs[hash])})
		case known != nil && known.refCount+delta == 0:
			ops = append(ops, bucketWrite{jobBucket, hash, nil})
		}
	}
	return ops
}

// apply makes the collected changes in the jobTable.
func (b *jobBatch) apply() {
	for hash, delta := range b.refDeltas {
		known := b.table.byHash[hash]
		if known == nil {
			if known = b.addedEntries[hash]; known == nil || delta == 0 {
				continue
			}
			b.table.byHash[hash] = known
			b.table.byJob[known.job] = hash
		}
		if known.refCount += delta; known.refCount == 0 {
			delete(b.table.byHash, hash)
			delete(b.table.byJob, known.job)
		}
	}
}
