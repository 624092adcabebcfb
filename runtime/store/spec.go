package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// jobBucket is the bucket with the jobs of all allocations. It has each job version once, under the hash of its encoding, so a
// job version's allocations share one record and one object in memory.
const jobBucket = "specs"

// jobTable has the jobs of all stored allocations. After Open, only the writer goroutine uses it.
type jobTable struct {
	entriesByHash map[string]*jobEntry
	hashesByJob   map[*api.Job]string
}

type jobEntry struct {
	job               *api.Job
	refCount          int                         // how many allocations the job has
	lastValuesByGroup map[string]*lastAllocValues // keyed by group
}

// lastAllocValues are the values from a group's last allocation. Unless the group has ports, they are usually equal in all its
// allocations, which then share them in memory.
type lastAllocValues struct {
	allocatedResources *api.AllocatedResources
	resources          *api.Resources
	taskResources      map[string]*api.Resources
	metrics            *api.AllocationMetric
	events             []eventsOfTask // of the group's last ended allocation
}

// shareJobAndLastValues replaces an allocation's job by the shared one, and values that equal those of its group's last
// allocation. No reader may have the allocation yet.
func (e *jobEntry) shareJobAndLastValues(a *api.Allocation) {
	a.Job = e.job
	c := e.lastValuesOf(a.TaskGroup)
	shareWithLastIfEqual(&a.AllocatedResources, &c.allocatedResources)
	shareWithLastIfEqual(&a.Resources, &c.resources)
	shareWithLastIfEqual(&a.TaskResources, &c.taskResources)
	shareWithLastIfEqual(&a.Metrics, &c.metrics)
}

// lastValuesOf returns a group's values, which the caller may change.
func (e *jobEntry) lastValuesOf(group string) *lastAllocValues {
	c := e.lastValuesByGroup[group]
	if c == nil {
		if e.lastValuesByGroup == nil {
			e.lastValuesByGroup = make(map[string]*lastAllocValues)
		}
		c = new(lastAllocValues)
		e.lastValuesByGroup[group] = c
	}
	return c
}

func shareWithLastIfEqual[T any](mine, last *T) {
	if reflect.DeepEqual(*mine, *last) {
		*mine = *last
	} else {
		*last = *mine
	}
}

func newJobTable() *jobTable {
	return &jobTable{entriesByHash: make(map[string]*jobEntry), hashesByJob: make(map[*api.Job]string)}
}

// allocationInterner makes allocations loaded from the file share equal strings and equal event detail maps, to save memory.
type allocationInterner struct {
	internedStrings      map[string]string
	internedEventDetails []map[string]string    // the first event detail maps that differ from each other
	internedEvents       map[*eventsOfTask]bool // lists of shared events that were interned
}

// maxInternedDetails is the maximum map count in internedEventDetails.
const maxInternedDetails = 32

// internAllocation replaces the strings and event details of an allocation, and of its separate events, by equal ones that the
// interner has seen before. No reader may have the allocation yet.
func (i *allocationInterner) internAllocation(a *api.Allocation, events taskEvents) {
	for _, s := range []*string{
		&a.Namespace, &a.EvalID, &a.NodeID, &a.NodeName, &a.JobID, &a.TaskGroup, &a.DesiredStatus, &a.DesiredDescription,
		&a.ClientStatus, &a.ClientDescription, &a.DeploymentID,
	} {
		i.internString(s)
	}
	for _, task := range a.TaskStates {
		if task == nil {
			continue
		}
		i.internString(&task.State)
		i.internEvents(task.Events)
	}
	if len(events.tasks) > 0 && !i.internedEvents[&events.tasks[0]] {
		i.internedEvents[&events.tasks[0]] = true
		for _, ofTask := range events.tasks {
			i.internEvents(ofTask.withoutTime)
		}
	}
}

func (i *allocationInterner) internEvents(events []*api.TaskEvent) {
	for _, e := range events {
		if e == nil {
			continue
		}
		i.internString(&e.Type)
		i.internString(&e.DisplayMessage)
		i.internString(&e.Message)
		i.internEventDetails(&e.Details)
	}
}

func (i *allocationInterner) internString(s *string) {
	if known, ok := i.internedStrings[*s]; ok {
		*s = known
	} else {
		i.internedStrings[*s] = *s
	}
}

func (i *allocationInterner) internEventDetails(details *map[string]string) {
	if *details == nil {
		return
	}
	for _, known := range i.internedEventDetails {
		if maps.Equal(known, *details) {
			*details = known
			return
		}
	}
	if len(i.internedEventDetails) < maxInternedDetails {
		i.internedEventDetails = append(i.internedEventDetails, *details)
	}
}

// allocationRecord is an allocation's stored form.
type allocationRecord struct {
	Alloc   *api.Allocation `store:"alloc"` // Alloc has no job
	JobHash string          `store:"spec"`  // hash of the job, which is its record's key; empty if there is none

	// The job version to use if the job's record cannot be read.
	JobVersion     uint64 `store:"job_version"`
	JobCreateIndex uint64 `store:"job_create_index"`
}

// jobTableBatch collects changes to the jobTable from a batch of requests. They take effect in apply.
type jobTableBatch struct {
	table               *jobTable
	newHashesByJob      map[*api.Job]string // hashes of jobs that are not in jobTable.hashesByJob
	newEntriesByHash    map[string]*jobEntry
	encodedJobsByHash   map[string][]byte
	refCountDeltaByHash map[string]int
}

func (t *jobTable) newBatch() *jobTableBatch {
	return &jobTableBatch{
		table:               t,
		newHashesByJob:      make(map[*api.Job]string),
		newEntriesByHash:    make(map[string]*jobEntry),
		encodedJobsByHash:   make(map[string][]byte),
		refCountDeltaByHash: make(map[string]int),
	}
}

// encodeAllocAndShareJob returns an allocation encoded without its job, and makes it share the job and other values with
// other allocations in memory.
func (b *jobTableBatch) encodeAllocAndShareJob(a *api.Allocation) ([]byte, error) {
	if a.Job == nil {
		return encodeAllocation(a, "")
	}
	hash, err := b.jobHashEncodingNewJob(a.Job)
	if err != nil {
		return nil, err
	}
	known := b.table.entriesByHash[hash]
	if known == nil {
		known = b.newEntriesByHash[hash]
	}
	if known == nil {
		known = &jobEntry{job: a.Job}
		b.newEntriesByHash[hash] = known
	}
	known.shareJobAndLastValues(a)
	return encodeAllocation(a, hash)
}

func encodeAllocation(a *api.Allocation, jobHash string) ([]byte, error) {
	bare := *a
	bare.Job = nil
	row := allocationRecord{Alloc: &bare, JobHash: jobHash}
	if a.Job != nil {
		row.JobVersion, row.JobCreateIndex = pointer.Value(a.Job.Version), pointer.Value(a.Job.CreateIndex)
	}
	return encodeMsgpack(newWrittenAllocationRecord(&row))
}

// writtenAllocationRecord is how an allocationRecord is written: each task state is written as a taskStateRecord, because the
// names of empty fields would be half the record. allocationRecord decodes it.
type writtenAllocationRecord struct {
	Alloc   *allocationWithTaskRecords `store:"alloc"`
	JobHash string                     `store:"spec"`

	JobVersion     uint64 `store:"job_version"`
	JobCreateIndex uint64 `store:"job_create_index"`
}

// allocationWithTaskRecords is an allocation with the field TaskStates replaced.
type allocationWithTaskRecords struct {
	*api.Allocation
	TaskStates map[string]*taskStateRecord
}

func newWrittenAllocationRecord(r *allocationRecord) *writtenAllocationRecord {
	w := &writtenAllocationRecord{JobHash: r.JobHash, JobVersion: r.JobVersion, JobCreateIndex: r.JobCreateIndex}
	if r.Alloc == nil {
		return w
	}
	w.Alloc = &allocationWithTaskRecords{Allocation: r.Alloc}
	if r.Alloc.TaskStates != nil {
		w.Alloc.TaskStates = make(map[string]*taskStateRecord, len(r.Alloc.TaskStates))
	}
	for name, s := range r.Alloc.TaskStates {
		w.Alloc.TaskStates[name] = newTaskStateRecord(s)
	}
	return w
}

func (b *jobTableBatch) jobHashEncodingNewJob(job *api.Job) (string, error) {
	if hash, ok := b.table.hashesByJob[job]; ok {
		return hash, nil
	}
	if hash, ok := b.newHashesByJob[job]; ok {
		return hash, nil
	}
	hash, payload, err := encodeJob(job)
	if err != nil {
		return "", err
	}
	b.newHashesByJob[job], b.encodedJobsByHash[hash] = hash, payload
	return hash, nil
}

func encodeJob(job *api.Job) (hash string, payload []byte, err error) {
	if payload, err = encodeMsgpack(job); err != nil {
		return "", nil, fmt.Errorf("encode job %q: %w", pointer.Value(job.ID), err)
	}
	digest := sha256.Sum256(payload)
	return hex.EncodeToString(digest[:16]), payload, nil
}

// addJobRefs adds delta to the allocation count of a's job: +1 if a is added, -1 if a is removed.
func (b *jobTableBatch) addJobRefs(a *api.Allocation, delta int) {
	if a.Job == nil {
		return
	}
	hash, ok := b.table.hashesByJob[a.Job]
	if !ok {
		hash = b.newHashesByJob[a.Job]
	}
	b.refCountDeltaByHash[hash] += delta
}

// jobWrites returns the writes that store new jobs and delete jobs without an allocation after this batch.
func (b *jobTableBatch) jobWrites(index uint64) []bucketWrite {
	var ops []bucketWrite
	for hash, delta := range b.refCountDeltaByHash {
		known := b.table.entriesByHash[hash]
		switch {
		case known == nil && delta > 0:
			ops = append(ops, bucketWrite{jobBucket, hash, encodeRecord(jobBucket, hash, index, b.encodedJobsByHash[hash])})
		case known != nil && known.refCount+delta == 0:
			ops = append(ops, bucketWrite{jobBucket, hash, nil})
		}
	}
	return ops
}

// applyToTable makes the collected changes in the jobTable.
func (b *jobTableBatch) applyToTable() {
	for hash, delta := range b.refCountDeltaByHash {
		known := b.table.entriesByHash[hash]
		if known == nil {
			if known = b.newEntriesByHash[hash]; known == nil || delta == 0 {
				continue
			}
			b.table.entriesByHash[hash] = known
			b.table.hashesByJob[known.job] = hash
		}
		if known.refCount += delta; known.refCount == 0 {
			delete(b.table.entriesByHash, hash)
			delete(b.table.hashesByJob, known.job)
		}
	}
}
