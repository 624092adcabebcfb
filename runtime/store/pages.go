package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// A bbolt file's layout. bbolt trusts a file's content: a damaged page can make it panic or read wrong memory. So the functions
// below read and verify all pages before bbolt opens the file.
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

// unreadablePart is an unreadable page, or part of a page, in the state file.
type unreadablePart struct {
	bucket          string // the page's table; empty for the table list
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
	pageCount        uint64 // how many pages the database uses; later pages of the file are unused
	txid             uint64
	otherMetaInvalid bool // the other meta page is invalid; it may have belonged to a newer transaction
}

var errNoMetaPage = errors.New("neither of its two heads is valid")

// readMetaPage returns the newest valid meta page's content.
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

// pageScanner reads and verifies a bbolt file's pages in use.
type pageScanner struct {
	file            io.ReaderAt
	pageCount       uint64 // the file's page count
	visitedPageIDs  map[uint64]bool
	unreadableParts []unreadablePart
	onlyBucket      string // the only bucket to read; empty for all buckets
	visitRecord     func(bucket string, key, value []byte)
}

// visitRecordsAndVerifyPages calls visit for every readable record in a bbolt file, and returns the unreadable parts. If there
// are none, bbolt can open the file safely. With onlyBucket, it reads only this bucket and the bucket list. The slices passed
// to visit are parts of pages and must not be changed.
func visitRecordsAndVerifyPages(f io.ReaderAt, size int64, onlyBucket string, visit func(bucket string, key, value []byte)) []unreadablePart {
	h, err := readMetaPage(f)
	if err != nil {
		return []unreadablePart{{unreadableCause: err.Error()}}
	}
	s := &pageScanner{file: f, pageCount: uint64(size) / pageSize, visitedPageIDs: map[uint64]bool{0: true, 1: true}, onlyBucket: onlyBucket, visitRecord: visit}
	if h.otherMetaInvalid {
		s.unreadableParts = append(s.unreadableParts, unreadablePart{pageID: (h.txid + 1) % 2, unreadableCause: "one of the two heads is not valid, the last change may be lost"})
	}
	if h.freelistPageID != noFreelist {
		s.unreadableParts = append(s.unreadableParts, unreadablePart{pageID: h.freelistPageID, unreadableCause: "a list of free pages, which no build of this program stores"})
	}
	if h.pageCount > s.pageCount {
		s.unreadableParts = append(s.unreadableParts, unreadablePart{pageID: s.pageCount, unreadableCause: fmt.Sprintf("the file ends here, %d pages are missing", h.pageCount-s.pageCount)})
	}
	s.pageCount = min(s.pageCount, h.pageCount)
	s.walkPages("", h.rootPageID, 0, nil, nil)
	return s.unreadableParts
}

// maxOverflowPages is how many pages can follow a page at most, with together 256 MiB.
const maxOverflowPages = 1 << 16

// maxUnreadableParts is the maximum number of unreadable parts per file. Later parts are skipped, and not reported.
const maxUnreadableParts = 10_000

func (s *pageScanner) addUnreadablePart(bucket string, pageID uint64, format string, args ...any) {
	if len(s.unreadableParts) == maxUnreadableParts {
		return
	}
	s.unreadableParts = append(s.unreadableParts, unreadablePart{bucket, pageID, fmt.Sprintf(format, args...)})
}

// walkPages calls visitRecord for the records in a page and in the pages below it in the tree. Records with keys outside
// [lowKey, highKey) are reported as unreadable parts; nil means no limit.
func (s *pageScanner) walkPages(bucket string, pageID uint64, depth int, lowKey, highKey []byte) {
	page, err := s.readPageWithOverflow(pageID)
	if err != nil {
		s.addUnreadablePart(bucket, pageID, "%v", err)
		return
	}
	if depth > maxTreeDepth {
		s.addUnreadablePart(bucket, pageID, "too deep")
		return
	}
	le := binary.LittleEndian
	count := int(le.Uint16(page[10:]))
	if le.Uint16(page[8:]) == leafPageFlag {
		s.visitRecordsOfLeaf(bucket, pageID, page, lowKey, highKey)
		return
	}
	if count == 0 || pageHeaderSize+count*elementHeaderSize > len(page) {
		s.addUnreadablePart(bucket, pageID, "branch with %d elements", count)
		return
	}
	if !hasValidElementCount(page, 0, count) {
		s.addUnreadablePart(bucket, pageID, "it has other elements than the %d that it names", count)
	}
	keys := make([][]byte, count)
	for i := range count {
		at := pageHeaderSize + i*elementHeaderSize
		keys[i] = pageSliceOrNil(page, at, le.Uint32(page[at:]), le.Uint32(page[at+4:]))
	}
	for i := range count {
		next := highKey
		if i+1 < count {
			next = keys[i+1]
		}
		if !isInKeyRange(lowKey, keys[i], next) {
			s.addUnreadablePart(bucket, pageID, "element %d is out of order", i)
			continue
		}
		s.walkPages(bucket, le.Uint64(page[pageHeaderSize+i*elementHeaderSize+8:]), depth+1, keys[i], next)
		lowKey = keys[i]
	}
}

// visitRecordsOfLeaf calls visitRecord for one leaf page's records.
func (s *pageScanner) visitRecordsOfLeaf(bucket string, pageID uint64, page []byte, lowKey, highKey []byte) {
	le := binary.LittleEndian
	count := int(le.Uint16(page[10:]))
	if pageHeaderSize+count*elementHeaderSize > len(page) {
		s.addUnreadablePart(bucket, pageID, "leaf with %d elements", count)
		return
	}
	if count == 0 && len(page) > pageHeaderSize || count > 0 && !hasValidElementCount(page, 4, count) {
		s.addUnreadablePart(bucket, pageID, "it has other elements than the %d that it names", count)
	}
	// A page's elements do not overlap. One damaged size may reach over all others, which are still read; more mean a page
	// crafted to need much more memory than its size.
	unreadBytes := 2 * len(page)
	for i := range count {
		at := pageHeaderSize + i*elementHeaderSize
		flags, pos, keySize, valueSize := le.Uint32(page[at:]), le.Uint32(page[at+4:]), le.Uint32(page[at+8:]), le.Uint32(page[at+12:])
		key := pageSliceOrNil(page, at, pos, keySize)
		value := pageSliceOrNil(page, at+int(keySize), pos, valueSize)
		if key == nil || value == nil && valueSize > 0 {
			s.addUnreadablePart(bucket, pageID, "element %d reaches out of the page", i)
			continue
		}
		if unreadBytes -= len(key) + len(value); unreadBytes < 0 {
			s.addUnreadablePart(bucket, pageID, "its elements overlap from element %d", i)
			return
		}
		if !isInKeyRange(lowKey, key, highKey) || i > 0 && bytes.Equal(lowKey, key) {
			s.addUnreadablePart(bucket, pageID, "element %d is out of order", i)
			// The record is visited although its key is out of order: its checksum covers the key and the table.
		} else {
			lowKey = key
		}
		isBucket := flags == bucketElementFlag
		switch {
		case flags != 0 && !isBucket, isBucket != (bucket == ""):
			s.addUnreadablePart(bucket, pageID, "element %d has flags %#x", i, flags)
		case isBucket:
			s.visitBucketElement(string(key), pageID, value)
		default:
			s.visitRecord(bucket, key, value)
		}
	}
}

// visitBucketElement calls visitRecord for a bucket's records. elementValue is the value of the bucket's element in the bucket
// list.
func (s *pageScanner) visitBucketElement(name string, pageID uint64, elementValue []byte) {
	if name == "" || len(elementValue) < bucketHeaderSize {
		s.addUnreadablePart(name, pageID, "table without a name or a root")
		return
	}
	if s.onlyBucket != "" && name != s.onlyBucket {
		return
	}
	if root := binary.LittleEndian.Uint64(elementValue); root != 0 {
		s.walkPages(name, root, 0, nil, nil)
		return
	}
	page := elementValue[bucketHeaderSize:] // a small table is stored inline: its page follows the bucket header
	if len(page) < pageHeaderSize || binary.LittleEndian.Uint16(page[8:]) != leafPageFlag {
		s.addUnreadablePart(name, pageID, "small table is not a leaf")
		return
	}
	s.visitRecordsOfLeaf(name, pageID, page, nil, nil)
}

// readPageWithOverflow returns a page together with its overflow pages.
func (s *pageScanner) readPageWithOverflow(pageID uint64) ([]byte, error) {
	if pageID >= s.pageCount {
		return nil, errors.New("not in the file")
	}
	if s.visitedPageIDs[pageID] {
		return nil, errors.New("used twice")
	}
	s.visitedPageIDs[pageID] = true
	page := make([]byte, pageSize)
	if _, err := s.file.ReadAt(page, int64(pageID)*pageSize); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if have := le.Uint64(page); have != pageID {
		return nil, fmt.Errorf("its number is %d", have)
	}
	if flags := le.Uint16(page[8:]); flags != leafPageFlag && flags != branchPageFlag {
		return nil, fmt.Errorf("it has flags %#x", flags)
	}
	overflow := uint64(le.Uint32(page[12:]))
	if overflow == 0 {
		return page, nil
	}
	if overflow > maxOverflowPages {
		return nil, fmt.Errorf("it has %d pages, which is more than any record needs", overflow+1)
	}
	if overflow >= s.pageCount-pageID {
		return nil, fmt.Errorf("%d pages that follow are not in the file", overflow)
	}
	for i := pageID + 1; i <= pageID+overflow; i++ {
		if s.visitedPageIDs[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		s.visitedPageIDs[i] = true
	}
	whole := make([]byte, (overflow+1)*pageSize)
	copy(whole, page)
	if _, err := s.file.ReadAt(whole[pageSize:], int64(pageID+1)*pageSize); err != nil {
		return nil, err
	}
	return whole, nil
}

// hasValidElementCount reports whether the first key of a page directly follows its count elements. Otherwise the stored
// element count is wrong, and records would be lost without an error. keyPosOffset is the key position's offset within an
// element.
func hasValidElementCount(page []byte, keyPosOffset, count int) bool {
	return binary.LittleEndian.Uint32(page[pageHeaderSize+keyPosOffset:]) == uint32(count*elementHeaderSize)
}

// pageSliceOrNil returns part of a page, or nil if the part exceeds the page.
func pageSliceOrNil(page []byte, elementOffset int, pos, size uint32) []byte {
	from := uint64(elementOffset) + uint64(pos)
	to := from + uint64(size)
	if from > uint64(len(page)) || to > uint64(len(page)) {
		return nil
	}
	return page[from:to]
}

func isInKeyRange(low, key, high []byte) bool {
	return len(key) > 0 && (low == nil || bytes.Compare(low, key) <= 0) && (high == nil || bytes.Compare(key, high) < 0)
}
