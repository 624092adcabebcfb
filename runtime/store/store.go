package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-memdb"
	"github.com/hashicorp/nomad/api"
)

// ErrClosed: the store has been closed.
var ErrClosed = errors.New("state store is closed")

// FileName is the state file's name in a data directory.
const FileName = "state.db"

// Config configures a Store.
type Config struct {
	// StateFilePath is the state file. Its directory must exist. A missing file is made, with mode
	// 0600.
	StateFilePath string
	Logger        hclog.Logger
	// KeyFile is the path of the file with the keys for sealing variables, and other records that can hold their items. A
	// missing file is made if no record is sealed yet. If KeyFile is empty, nothing is sealed.
	KeyFile string
	// TemporaryKeys seals records with a key that is not stored, instead of KeyFile's keys.
	TemporaryKeys bool
	// ReserveDiskSpace makes the store allocate disk space for the state file in advance, so that changes that free space can
	// be stored on a full disk.
	ReserveDiskSpace bool
	// ContinueAtHigherIndex makes Open set an index higher than those in a later state, which the file replaces.
	// [Store.WriteCopy] writes this index, and so does the next change to a table with an index.
	ContinueAtHigherIndex bool
	// BuildVersion is this build's version, stored in the file.
	BuildVersion string
	// MaxFeedChanges is the maximum number of changes for which the feed keeps events; 0 means 100. The feed keeps fewer if the
	// changes have many events.
	MaxFeedChanges int
	// OnWrite is called after each state file write, with the write's duration, record count and error. The writer waits until
	// it has returned. OnWrite may be nil.
	OnWrite func(writeDuration time.Duration, recordCount int, err error)
}

// Store is one node's state, in memory and, unless [OpenMemory] has made it, in a file. Its methods may be called concurrently.
// It is large because it has the state for all parts of the node.
type Store struct {
	logger     hclog.Logger
	feed       *eventFeed
	memDB      *memdb.MemDB  // memDB is the state that readers see; all of it is on disk
	writerDone chan struct{} // closed when the writer has returned

	sealer  *sealer
	queue   requestQueue
	onWrite func(writeDuration time.Duration, recordCount int, err error) // Config.OnWrite

	commitCount  atomic.Int64
	lastWriteErr atomic.Pointer[error]

	damageMu                 sync.Mutex
	damagedParts             []Damage
	recordCountByUnknownPart map[string]int // part name -> record count, for parts unknown to this build

	continuesAtHigherIndex bool // Config.ContinueAtHigherIndex

	// Only the writer uses the next fields.
	file                    *stateFile // file is nil for a store in memory
	currentFormat           fileFormat
	buildVersion            string       // this build's version
	formatRecord            formatRecord // file format record that this build writes
	isFormatRecordOutdated  bool         // the file does not have formatRecord yet, so the next write stores it
	jobs                    *jobTable
	lastIndex               uint64
	quarantinedRecordByName map[string][]byte  // name -> a quarantined record's bytes, as stored in the file
	unquarantinedRecords    []QuarantinedEntry // records that Open has taken out of the quarantine
	recordsInUnknownBuckets []bucketWrite      // records in buckets unknown to this build; they are kept
	// payloadsWithUnknownFields has the unencrypted parts, as stored in the file, of public table records with fields unknown
	// to this build.
	payloadsWithUnknownFields map[recordKey][]byte
	pendingNodeEvents         []*api.NodeEvent // pendingNodeEvents are node events for the next [Txn.PutNodeWithStorageEvents] to add
}

// Index returns the last visible change's index.
func (s *Store) Index() uint64 { return s.Snapshot().Index() }

// WaitForIndex blocks until the store's index is at least min, or ctx ends.
func (s *Store) WaitForIndex(ctx context.Context, min uint64) error {
	for {
		ws := NewWatchSet()
		if s.Snapshot().LatestTableIndex(ws, allTablesRow) >= min {
			return nil
		}
		if err := ws.WatchCtx(ctx); err != nil {
			return context.Cause(ctx)
		}
	}
}

// CommitCount returns how many transactions have changed the state since the store was opened.
func (s *Store) CommitCount() int64 { return s.commitCount.Load() }

// FileSizeBytes returns the state file's size in bytes, or 0 if there is none.
func (s *Store) FileSizeBytes() int64 {
	if s.file == nil {
		return 0
	}
	info, err := os.Stat(s.file.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LastWriteErr returns the last write's error, for example because the disk is full. It is nil once a write has succeeded.
func (s *Store) LastWriteErr() error {
	if err := s.lastWriteErr.Load(); err != nil {
		return *err
	}
	return nil
}

// CheckWrite writes to the state file without changing the state, and returns the error. A caller calls it before ending
// something that starts again only with a state change.
func (s *Store) CheckWrite(ctx context.Context) error {
	if s.file == nil {
		return nil
	}
	return s.runBetweenTransactions(ctx, func() error {
		err := s.file.writeRecords(nil, s.allRecords(s.memDB.Txn(false)))
		if err != nil {
			s.lastWriteErr.Store(&err)
		} else {
			s.lastWriteErr.Store(nil)
		}
		return err
	})
}

// Damage returns the parts of the state that could not be read by Open or later.
func (s *Store) Damage() []Damage {
	s.damageMu.Lock()
	defer s.damageMu.Unlock()
	return slices.Clip(s.damagedParts)
}

// KeptDamagedFiles returns the paths of the damaged state files that this store and earlier ones have kept, oldest first, and
// when the newest was found.
func (s *Store) KeptDamagedFiles() (paths []string, newest time.Time) {
	if s.file == nil {
		return nil, time.Time{}
	}
	paths = listKeptDamagedFiles(s.file.path)
	if len(paths) > 0 {
		newest, _ = time.Parse(damagedTimeFormat, strings.TrimPrefix(paths[len(paths)-1], s.file.path+damagedInfix)) // zero for another file with that name
	}
	return paths, newest
}

// Update makes one atomic change: everything that fn puts is stored under one new index. If fn returns an error, nothing is
// stored and Update returns that error. Update blocks until the change is on disk; only then is it visible to readers. The
// returned index is the change's index, or, if no table with an index has changed, the index of the state read by fn.
// Concurrent updates share one disk write.
//
// The goroutine of the writer calls fn, and no two such functions at the same time: fn must
// not block, and must not call Update. If ctx ends before fn was called, fn is not called.
func (s *Store) Update(ctx context.Context, fn func(*Txn) error) (index uint64, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	r, err := s.enqueue(fn, 0)
	if err != nil {
		return 0, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.requestState.CompareAndSwap(requestStateQueued, requestStateWithdrawn) {
			return 0, context.Cause(ctx)
		}
		<-r.done
	}
	if r.panicValue != nil {
		panic(r.panicValue)
	}
	return r.index, r.err
}

// UpdateInNextTransaction makes the writer call fn in each transaction until a transaction succeeds, so that fn's changes are
// stored together with the next other change. It does not block, and does not cause a write itself. fn may be called several
// times, and must obey Update's rules.
func (s *Store) UpdateInNextTransaction(fn func(*Txn) error) { s.queue.addNextTxnFn(fn) }

// enqueue makes the writer call fn after all earlier requests, when maxDelay has passed, or before that together with another
// request.
func (s *Store) enqueue(fn func(*Txn) error, maxDelay time.Duration) (*updateRequest, error) {
	return s.queue.push(&updateRequest{updateFn: fn, writeDeadline: time.Now().Add(maxDelay)})
}

// Close blocks until the pending updates are stored, and closes the file. Later updates fail with ErrClosed.
func (s *Store) Close() error {
	if !s.queue.closeIfOpen() {
		return ErrClosed
	}
	<-s.writerDone
	if s.file == nil {
		return nil
	}
	return s.file.close()
}

// runWriter is the writer goroutine. It ends after Close.
func (s *Store) runWriter() {
	defer close(s.writerDone)
	for {
		requests, delay, closed := s.queue.takeDueRequests()
		switch {
		case len(requests) > 0:
			s.commitRequests(requests)
		case closed:
			return
		case delay > 0:
			select {
			case <-s.queue.writerWake:
			case <-time.After(delay):
			}
		default:
			s.compactFileAndWaitWhileIdle()
		}
	}
}

// idleReleaseDelay is how long the writer must be idle before it releases the file's pages.
const idleReleaseDelay = time.Second

// compactFileAndWaitWhileIdle blocks until the queue has something to do. After idleReleaseDelay, it compacts the file, and
// releases the memory of its mapped pages.
func (s *Store) compactFileAndWaitWhileIdle() {
	if s.file == nil {
		<-s.queue.writerWake
		return
	}
	select {
	case <-s.queue.writerWake:
	case <-time.After(idleReleaseDelay):
		s.compactFileIfWorthwhile()
		s.file.releaseMappedPages()
		<-s.queue.writerWake
	}
}

// compactFileIfWorthwhile replaces the state file by a smaller one if most pages are free.
func (s *Store) compactFileIfWorthwhile() {
	if !s.file.isWorthCompacting() {
		return
	}
	before := s.FileSizeBytes()
	if err := s.file.rebuildFile(s.allRecords(s.memDB.Txn(false))); err != nil {
		s.logger.Debug("state file not compacted", "error", err) // the old file is still complete, and the next update reports a full disk
		return
	}
	s.logger.Debug("state file compacted", "bytes_before", before, "bytes", s.FileSizeBytes())
}

// commitRequests calls the functions of the requests, writes their changes in one transaction, makes the changes visible to
// readers, and completes the requests.
func (s *Store) commitRequests(requests []*updateRequest) {
	b := s.newBatch()
	var exclusiveRequests, replacedRequests []*updateRequest
	markReplacedPuts(requests)
	for _, r := range requests {
		switch {
		case r.replacedBy != nil:
			replacedRequests = append(replacedRequests, r)
		case !r.requestState.CompareAndSwap(requestStateQueued, requestStateTaken):
		case r.betweenTxnsFn != nil:
			exclusiveRequests = append(exclusiveRequests, r)
		default:
			b.runRequest(r)
		}
	}
	withNext := s.queue.listNextTxnFns() // after the requests, because one of them can quarantine the old record
	for _, fn := range withNext {
		b.runRequest(&updateRequest{updateFn: fn, done: make(chan struct{})})
	}
	err := b.writeToFileAndIndexRow()
	switch {
	case err != nil:
		b.memTxn.Abort() // without Abort, the next batch would wait for this memdb transaction forever
		s.lastWriteErr.Store(&err)
	default:
		b.publish()
		s.queue.removeNextTxnFns(len(withNext))
		if len(b.mergedChangeByRecord) > 0 {
			s.lastWriteErr.Store(nil)
		}
	}
	for _, r := range b.requests {
		if err != nil && r.err == nil && r.panicValue == nil {
			r.index, r.err = 0, err
		}
		if r.err == nil {
			for _, f := range r.onCommit {
				f()
			}
		}
		close(r.done)
	}
	for _, r := range replacedRequests {
		r.err, r.panicValue = r.replacedBy.err, r.replacedBy.panicValue
		close(r.done)
	}
	for _, r := range exclusiveRequests {
		r.err = r.betweenTxnsFn()
		close(r.done)
	}
}

// writeBatch has the requests with changes that one transaction writes to the file, and these changes.
type writeBatch struct {
	store                *Store
	memTxn               *memdb.Txn
	index                uint64
	requests             []*updateRequest
	mergedChangeByRecord map[recordKey]*recordChange // the first before and the last after for each changed record
	jobs                 *jobTableBatch
	eventsByTxn          [][]Event

	quarantined []unreadableRecord
}

type recordKey struct {
	table Table
	key   string
}

func (s *Store) newBatch() *writeBatch {
	return &writeBatch{
		store:                s,
		memTxn:               s.memDB.Txn(true),
		index:                s.lastIndex,
		mergedChangeByRecord: make(map[recordKey]*recordChange),
		jobs:                 s.jobs.newBatch(),
	}
}

// runRequest calls the request's function. If the function fails, it undoes the function's changes.
func (b *writeBatch) runRequest(r *updateRequest) {
	b.requests = append(b.requests, r)
	tx := &Txn{
		Reader:        Reader{beginRead: func() *memdb.Txn { return b.memTxn }, quarantineRecordLater: b.store.quarantineRecordLater, reportUnknownPartOnce: b.store.reportUnknownPartOnce, undecryptedSecretByObject: b.store.sealer.undecryptedSecretByObject},
		store:         b.store,
		memTxn:        b.memTxn,
		index:         b.index + 1,
		changedTables: make(map[Table]bool),
		storageEvents: b.store.pendingNodeEvents,
	}
	r.panicValue = tx.callUpdateFunc(r.updateFn)
	var payloads [][]byte
	if tx.err == nil && r.panicValue == nil {
		tx.setTableIndexes()
		payloads = b.encodeChanges(tx)
	}
	if tx.err != nil || r.panicValue != nil {
		r.err = tx.err
		if err := tx.undoChanges(); err != nil {
			r.err = errors.Join(r.err, err)
		}
		return
	}
	if tx.hasPublicTableChange {
		b.index = tx.index
	}
	r.index, r.onCommit = b.index, tx.onCommit
	for i, c := range tx.changes {
		c.payload = payloads[i]
		key := recordKey{c.tableDef.table, c.key}
		if net := b.mergedChangeByRecord[key]; net != nil {
			net.after, net.payload = c.after, c.payload
		} else {
			b.mergedChangeByRecord[key] = &c
		}
	}
	b.quarantined = append(b.quarantined, tx.quarantined...)
	if len(tx.events) > 0 {
		b.eventsByTxn = append(b.eventsByTxn, tx.events)
	}
}

// callUpdateFunc calls fn. If fn panics, it returns the panic value and the stack, with which Update panics in its caller.
func (tx *Txn) callUpdateFunc(fn func(*Txn) error) (panicked any) {
	defer func() {
		if p := recover(); p != nil {
			panicked = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
		}
	}()
	if err := fn(tx); err != nil {
		tx.err = err
	}
	return nil
}

// writeToFileAndIndexRow writes the batch's changes to the disk. After an error, the caller must abort memTxn.
func (b *writeBatch) writeToFileAndIndexRow() error {
	if len(b.mergedChangeByRecord) == 0 {
		return nil
	}
	if b.index != b.store.lastIndex {
		if err := b.memTxn.Insert(tableIndexTable, &tableIndexRow{allTablesRow, b.index}); err != nil {
			return err
		}
	}
	if b.store.file == nil {
		return nil
	}
	ops := make([]bucketWrite, 0, len(b.mergedChangeByRecord)+2)
	for key, c := range b.mergedChangeByRecord {
		if c.before == nil && c.after == nil {
			continue
		}
		o := bucketWrite{bucket: string(key.table), key: key.key}
		if r, ok := c.after.(*localRecord); ok {
			c.payload = b.store.sealer.encodeLocalRecord(key.table, r)
		}
		if c.after != nil {
			o.value = encodeRecord(o.bucket, o.key, b.index, c.payload)
		}
		if a, ok := c.after.(*api.Allocation); ok {
			b.jobs.addJobRefs(a, +1)
		}
		if a, ok := c.before.(*api.Allocation); ok {
			b.jobs.addJobRefs(a, -1)
		}
		ops = append(ops, o)
	}
	ops = append(ops, b.jobs.jobWrites(b.index)...)
	for _, u := range b.quarantined {
		o, err := u.quarantineWrite(b.store, b.index)
		if err != nil {
			return err
		}
		b.store.quarantinedRecordByName[o.key] = o.value // kept for rebuildFile, which writes the quarantine to a new file
		ops = append(ops, o)
	}
	if b.store.isFormatRecordOutdated {
		ops = append(ops, encodeFormatRecord(b.store.formatRecord))
	}
	if b.index != b.store.lastIndex {
		o, err := encodeIndexRecord(b.memTxn)
		if err != nil {
			return err
		}
		ops = append(ops, o)
	}
	start := time.Now()
	err := b.store.file.writeRecords(ops, b.store.allRecords(b.memTxn))
	if b.store.onWrite != nil {
		b.store.onWrite(time.Since(start), len(ops), err)
	}
	return err
}

// encodeChanges returns the encoded objects that a request has put. The payloads of local records are nil, and for a store in
// memory all payloads are nil.
func (b *writeBatch) encodeChanges(tx *Txn) [][]byte {
	payloads := make([][]byte, len(tx.changes))
	if b.store.file == nil {
		return payloads
	}
	for i, c := range tx.changes {
		var err error
		switch obj := c.after.(type) {
		case nil:
		case *api.Allocation:
			payloads[i], err = b.jobs.encodeAllocAndShareJob(obj)
		case *localRecord: // encoded by writeToFileAndIndexRow: several requests in a batch often change one task's record
		case *api.Variable, *api.ACLToken:
			payloads[i], err = b.store.encodeRecordWithSecret(c.tableDef.table, c.key, obj)
		default:
			payloads[i], err = encodeMsgpack(obj)
		}
		if err == nil {
			payloads[i], err = b.store.keepUnknownFieldsOf(c.tableDef.table, c.key, payloads[i])
		}
		if err != nil {
			tx.setFirstError(fmt.Errorf("encode %s %q: %w", c.tableDef.table, readableKey(c.key), err))
		}
	}
	return payloads
}

// allRecords returns an iterator over all records that a new file must have for the state in mem.
func (s *Store) allRecords(mem *memdb.Txn) func(yield func(bucketWrite) bool) {
	return func(yield func(bucketWrite) bool) {
		if !yield(encodeFormatRecord(s.formatRecord)) {
			return
		}
		o, err := encodeIndexRecord(mem)
		if err != nil {
			s.logger.Error("record cannot be written anew", "error", err)
		} else if !yield(o) {
			return
		}
		for key, value := range s.quarantinedRecordByName {
			if !yield(bucketWrite{quarantineBucket, key, s.sealer.resealQuarantined(key, value)}) {
				return
			}
		}
		for _, o := range s.recordsInUnknownBuckets {
			if !yield(o) {
				return
			}
		}
		hashes := newJobTable().newBatch()
		for _, k := range tableDefs {
			it, err := mem.Get(string(k.table), "id_prefix", "")
			if err != nil {
				panic(fmt.Sprintf("store: list %s: %v", k.table, err)) // a bug: tableDefs lacks the table or the index
			}
			for obj := it.Next(); obj != nil; obj = it.Next() {
				for _, o := range s.recordWritesOfObject(k, obj, hashes) {
					if !yield(o) {
						return
					}
				}
			}
		}
	}
}

// recordWritesOfObject returns the write for an object's record, for a new file. For a job's first allocation, it also returns
// the write for the job.
func (s *Store) recordWritesOfObject(def *tableDef, obj any, encodedJobs *jobTableBatch) []bucketWrite {
	var ops []bucketWrite
	var payload []byte
	var err error
	if ended, ok := obj.(*endedAllocation); ok {
		obj = ended.withEvents()
		ops = s.recordWritesOfObject(tableDefsByTable[agentMetaTable], newEndedRecord(ended.withoutEvents.ID), encodedJobs)
	}
	switch o := obj.(type) {
	case *api.Allocation:
		var hash string
		if o.Job != nil {
			var spec []byte
			if hash, spec, err = s.encodeJobOnce(o.Job, encodedJobs); spec != nil {
				ops = append(ops, bucketWrite{jobBucket, hash, encodeRecord(jobBucket, hash, s.lastIndex, spec)})
			}
		}
		if err == nil {
			payload, err = encodeAllocation(o, hash)
		}
	case *localRecord:
		payload = s.sealer.encodeLocalRecord(def.table, o)
	case *api.Variable, *api.ACLToken:
		payload, err = s.encodeRecordWithSecret(def.table, def.keyOf(o), o)
	default:
		payload, err = encodeMsgpack(obj)
	}
	key := def.keyOf(obj)
	if err == nil {
		payload, err = s.keepUnknownFieldsOf(def.table, key, payload)
	}
	if err != nil { // impossible: the object was encoded or decoded before
		s.logger.Error("record cannot be written anew", "table", def.table, "key", readableKey(key), "error", err)
		return nil
	}
	return append(ops, bucketWrite{string(def.table), key, encodeRecord(string(def.table), key, s.lastIndex, payload)})
}

// encodeJobOnce returns the record key for an allocation's job and, in the first call for the job, the payload. An already
// stored job keeps its key, although this build may encode it differently.
func (s *Store) encodeJobOnce(job *api.Job, encodedJobs *jobTableBatch) (key string, payload []byte, err error) {
	key, isStored := s.jobs.hashesByJob[job]
	if !isStored {
		if key, err = encodedJobs.jobHashEncodingNewJob(job); err != nil {
			return "", nil, err
		}
	}
	payload, isEncoded := encodedJobs.encodedJobsByHash[key]
	if isStored && !isEncoded {
		if _, payload, err = encodeJob(job); err == nil {
			payload, err = s.keepUnknownFieldsOf(jobBucket, key, payload)
		}
	}
	encodedJobs.encodedJobsByHash[key] = nil
	return key, payload, err
}

// publish makes the batch's changes, which are on disk, visible to readers, and adds their events to the feed.
func (b *writeBatch) publish() {
	s := b.store
	if len(b.mergedChangeByRecord) == 0 {
		b.memTxn.Abort()
		return
	}
	s.commitCount.Add(1)
	s.lastIndex, s.isFormatRecordOutdated = b.index, false
	for key, c := range b.mergedChangeByRecord {
		if c.after == nil {
			delete(s.payloadsWithUnknownFields, key)
		}
	}
	b.jobs.applyToTable()
	b.mergeRowsOfEndedAllocs()
	b.memTxn.Commit()
	s.reportQuarantinedRecords(b.quarantined)
	s.feed.addChanges(b.eventsByTxn)
}
