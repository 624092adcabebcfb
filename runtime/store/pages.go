package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The layout of a bbolt file. bbolt trusts the content of a file: a damaged page can make it panic or read
// wrong memory. So the functions below read and verify all pages before bbolt opens the file.
const (
	pageSize          = 4096
	pageHeaderSize    = 16 // layout: id u64, flags u16, count u16, overflow u32
	elementHeaderSize = 16 // layout in a leaf: flags u32, pos u32, key size u32, value size u32; in a branch: pos u32, key size u32, page u64
	bucketHeaderSize  = 16 // layout: root page u64, sequence u64
	metaPageSize      = 64

	branchPageFlag = 0x01
	leafPageFlag   = 0x02
	metaPageFlag   = 0x04

	bucketElementFlag = 0x01

	metaMagic   = 0xED0CDAED
	metaVersion = 2

	noFreelist   = 1<<64 - 1
	maxTreeDepth = 32
)

// unreadablePart is a page of the state file, or a part of a page, that cannot be read.
type unreadablePart struct {
	bucket          string // table to which the page belongs; empty for the list of tables
	pageID          uint64
	unreadableCause string
}

func (p unreadablePart) String() string {
	where := "the list of tables"
	if p.bucket != "" {
		where = p.bucket
	}
	return fmt.Sprintf("page %d (%s): %s", p.pageID, where, p.unreadableCause)
}

// metaPageContent is the content of a bbolt file's newest valid meta page.
type metaPageContent struct {
	rootPageID       uint64
	freelistPageID   uint64
	pageCount        uint64 // number of pages that the database uses; later pages of the file are unused
	txid             uint64
	otherMetaInvalid bool // the other one of the two meta pages is invalid; it can have belonged to a newer transaction
}

var errNoMetaPage = errors.New("neither of its two heads is valid")

// readMetaPage returns the content of the newest valid meta page.
func readMetaPage(f io.ReaderAt) (metaPageContent, error) {
	var newestMeta metaPageContent
	valid := 0
	buf := make([]byte, pageHeaderSize+metaPageSize)
	for id := range int64(2) {
		if _, err := f.ReadAt(buf, id*pageSize); err != nil {
			continue
		}
		le, m := binary.LittleEndian, buf[pageHeaderSize:]
		checksum := fnv.New64a()
		checksum.Write(m[:56])
		if le.Uint64(buf) != uint64(id) || le.Uint16(buf[8:]) != metaPageFlag || le.Uint32(m) != metaMagic || le.Uint32(m[4:]) != metaVersion ||
			le.Uint32(m[8:]) != pageSize || le.Uint64(m[56:]) != checksum.Sum64() {
			continue
		}
		valid++
		if txid := le.Uint64(m[48:]); valid == 1 || txid > newestMeta.txid {
			newestMeta = metaPageContent{rootPageID: le.Uint64(m[16:]), freelistPageID: le.Uint64(m[32:]), pageCount: le.Uint64(m[40:]), txid: txid}
		}
	}
	if valid == 0 {
		return metaPageContent{}, errNoMetaPage
	}
	newestMeta.otherMetaInvalid = valid == 1
	return newestMeta, nil
}

// pageScanner reads and verifies the pages of a bbolt file that are in use.
type pageScanner struct {
	file           io.ReaderAt
	pageCount      uint64 // number of pages in the file
	visitedPageIDs map[uint64]bool
	faults         []unreadablePart
	onlyBucket     string // the only bucket that is read; empty for all buckets
	visitRecord    func(bucket string, key, value []byte)
}

// scanBucket calls visit for every readable record of one bucket. It reports no faults.
func scanBucket(f io.ReaderAt, size int64, bucket string, visit func(bucket string, key, value []byte)) {
	h, err := readMetaPage(f)
	if err != nil {
		return
	}
	s := &pageScanner{file: f, pageCount: min(uint64(size)/pageSize, h.pageCount), visitedPageIDs: map[uint64]bool{0: true, 1: true}, onlyBucket: bucket, visitRecord: visit}
	s.walkPages("", h.rootPageID, 0, nil, nil)
}

// scanPages calls visit for every readable record of a bbolt file, and returns the unreadable parts. If there are none,
// bbolt can open the file safely. The slices that visit receives are parts of pages and must not be changed.
func scanPages(f io.ReaderAt, size int64, visit func(bucket string, key, value []byte)) []unreadablePart {
	h, err := readMetaPage(f)
	if err != nil {
		return []unreadablePart{{unreadableCause: err.Error()}}
	}
	s := &pageScanner{file: f, pageCount: uint64(size) / pageSize, visitedPageIDs: map[uint64]bool{0: true, 1: true}, visitRecord: visit}
	if h.otherMetaInvalid {
		s.faults = append(s.faults, unreadablePart{pageID: (h.txid + 1) % 2, unreadableCause: "one of the two heads is not valid, the last change may be lost"})
	}
	if h.freelistPageID != noFreelist {
		s.faults = append(s.faults, unreadablePart{pageID: h.freelistPageID, unreadableCause: "a list of free pages, which no build of this program stores"})
	}
	if h.pageCount > s.pageCount {
		s.faults = append(s.faults, unreadablePart{pageID: s.pageCount, unreadableCause: fmt.Sprintf("the file ends here, %d pages are missing", h.pageCount-s.pageCount)})
	}
	s.pageCount = min(s.pageCount, h.pageCount)
	s.walkPages("", h.rootPageID, 0, nil, nil)
	return s.faults
}

func (s *pageScanner) addFault(bucket string, page uint64, format string, args ...any) {
	s.faults = append(s.faults, unreadablePart{bucket, page, fmt.Sprintf(format, args...)})
}

// walkPages calls visitRecord for the records in a page and in the pages below it in the tree. Records whose keys are not in
// [low, high) are reported as faults; nil means no limit.
func (s *pageScanner) walkPages(bucket string, id uint64, depth int, low, high []byte) {
	page, err := s.readPage(id)
	if err != nil {
		s.addFault(bucket, id, "%v", err)
		return
	}
	if depth > maxTreeDepth {
		s.addFault(bucket, id, "too deep")
		return
	}
	le := binary.LittleEndian
	count := int(le.Uint16(page[10:]))
	if le.Uint16(page[8:]) == leafPageFlag {
		s.scanLeaf(bucket, id, page, low, high)
		return
	}
	if count == 0 || pageHeaderSize+count*elementHeaderSize > len(page) {
		s.addFault(bucket, id, "branch with %d elements", count)
		return
	}
	if !hasValidElementCount(page, 0, count) {
		s.addFault(bucket, id, "it has other elements than the %d that it names", count)
	}
	keys := make([][]byte, count)
	for i := range count {
		at := pageHeaderSize + i*elementHeaderSize
		keys[i] = pageSlice(page, at, le.Uint32(page[at:]), le.Uint32(page[at+4:]))
	}
	for i := range count {
		next := high
		if i+1 < count {
			next = keys[i+1]
		}
		if !isInKeyRange(low, keys[i], next) {
			s.addFault(bucket, id, "element %d is out of order", i)
			continue
		}
		s.walkPages(bucket, le.Uint64(page[pageHeaderSize+i*elementHeaderSize+8:]), depth+1, keys[i], next)
		low = keys[i]
	}
}

// scanLeaf calls visitRecord for the records of one leaf page.
func (s *pageScanner) scanLeaf(bucket string, id uint64, page []byte, low, high []byte) {
	le := binary.LittleEndian
	count := int(le.Uint16(page[10:]))
	if pageHeaderSize+count*elementHeaderSize > len(page) {
		s.addFault(bucket, id, "leaf with %d elements", count)
		return
	}
	if count == 0 && len(page) > pageHeaderSize || count > 0 && !hasValidElementCount(page, 4, count) {
		s.addFault(bucket, id, "it has other elements than the %d that it names", count)
	}
	for i := range count {
		at := pageHeaderSize + i*elementHeaderSize
		flags, pos, keySize, valueSize := le.Uint32(page[at:]), le.Uint32(page[at+4:]), le.Uint32(page[at+8:]), le.Uint32(page[at+12:])
		key := pageSlice(page, at, pos, keySize)
		value := pageSlice(page, at+int(keySize), pos, valueSize)
		if key == nil || value == nil && valueSize > 0 {
			s.addFault(bucket, id, "element %d reaches out of the page", i)
			continue
		}
		if !isInKeyRange(low, key, high) || i > 0 && bytes.Equal(low, key) {
			s.addFault(bucket, id, "element %d is out of order", i)
			// The record is visited although its key is out of order: its checksum covers the key and the
			// table.
		} else {
			low = key
		}
		isBucket := flags == bucketElementFlag
		switch {
		case flags != 0 && !isBucket, isBucket != (bucket == ""):
			s.addFault(bucket, id, "element %d has flags %#x", i, flags)
		case isBucket:
			s.scanBucket(string(key), id, value)
		default:
			s.visitRecord(bucket, key, value)
		}
	}
}

// scanBucket calls visitRecord for the records of the bucket whose element in the list of buckets has the given value.
func (s *pageScanner) scanBucket(name string, id uint64, value []byte) {
	if name == "" || len(value) < bucketHeaderSize {
		s.addFault(name, id, "table without a name or a root")
		return
	}
	if s.onlyBucket != "" && name != s.onlyBucket {
		return
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		s.walkPages(name, root, 0, nil, nil)
		return
	}
	page := value[bucketHeaderSize:] // a small table is stored inline: its page follows the bucket header
	if len(page) < pageHeaderSize || binary.LittleEndian.Uint16(page[8:]) != leafPageFlag {
		s.addFault(name, id, "small table is not a leaf")
		return
	}
	s.scanLeaf(name, id, page, nil, nil)
}

// readPage returns a page together with its overflow pages.
func (s *pageScanner) readPage(id uint64) ([]byte, error) {
	if id >= s.pageCount {
		return nil, errors.New("not in the file")
	}
	if s.visitedPageIDs[id] {
		return nil, errors.New("used twice")
	}
	s.visitedPageIDs[id] = true
	page := make([]byte, pageSize)
	if _, err := s.file.ReadAt(page, int64(id)*pageSize); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if have := le.Uint64(page); have != id {
		return nil, fmt.Errorf("its number is %d", have)
	}
	if flags := le.Uint16(page[8:]); flags != leafPageFlag && flags != branchPageFlag {
		return nil, fmt.Errorf("it has flags %#x", flags)
	}
	overflow := uint64(le.Uint32(page[12:]))
	if overflow == 0 {
		return page, nil
	}
	if overflow >= s.pageCount-id {
		return nil, fmt.Errorf("%d pages that follow are not in the file", overflow)
	}
	for i := id + 1; i <= id+overflow; i++ {
		if s.visitedPageIDs[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		s.visitedPageIDs[i] = true
	}
	whole := make([]byte, (overflow+1)*pageSize)
	copy(whole, page)
	if _, err := s.file.ReadAt(whole[pageSize:], int64(id+1)*pageSize); err != nil {
		return nil, err
	}
	return whole, nil
}

// hasValidElementCount reports whether the first key of a page directly follows the page's count elements. Otherwise the
// stored number of elements is wrong, and records would be lost without an error. at is the offset of the key position
// within an element.
func hasValidElementCount(page []byte, at, count int) bool {
	return binary.LittleEndian.Uint32(page[pageHeaderSize+at:]) == uint32(count*elementHeaderSize)
}

// pageSlice returns a part of a page, or nil if the part exceeds the page.
func pageSlice(page []byte, at int, pos, size uint32) []byte {
	from := uint64(at) + uint64(pos)
	to := from + uint64(size)
	if from > uint64(len(page)) || to > uint64(len(page)) {
		return nil
	}
	return page[from:to]
}

func isInKeyRange(low, key, high []byte) bool {
	return len(key) > 0 && (low == nil || bytes.Compare(low, key) <= 0) && (high == nil || bytes.Compare(key, high) < 0)
}
